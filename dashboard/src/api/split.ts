// The form of server-sent events.

/** Events in what has arrived so far, and the rest that is not whole yet. */
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
