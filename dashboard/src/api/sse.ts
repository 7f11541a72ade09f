// Parse server-sent events.

/** Return the complete events in a buffer, and the incomplete rest. */
export function splitEvents(text: string): {
  events: { name: string; data: string }[];
  rest: string;
} {
  const blocks = text.split("\n\n");
  const rest = blocks.pop() ?? "";
  const events = [];
  for (const block of blocks) {
    let name = "message";
    const data: string[] = [];
    for (const line of block.split("\n")) {
      if (line.startsWith("event:")) name = line.slice(6).trim();
      else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
    }
    if (data.length) events.push({ name, data: data.join("\n") });
  }
  return { events, rest };
}
