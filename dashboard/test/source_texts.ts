// Find the texts in the sources: the keys of translations, and texts that bypass them.
import ts from "typescript";

const sources = import.meta.glob<string>(["../src/**/*.{ts,tsx}", "!../src/api/schema.ts"], {
  query: "?raw",
  import: "default",
  eager: true,
});

/** The position of the text that is the key, in the arguments of each function. */
const FUNCTIONS = new Map([
  ["t", 0],
  ["rich", 0],
  ["plural", 2],
]);
/** Attributes of elements and properties of components that are shown or read out. */
const SHOWN = new Set(
  "title label aria-label placeholder note sub any words missing alt example".split(" "),
);
/** The same in every language. */
const NAMES = /^(GPU|CSV|PNG|YAML|PID|UTC|gpufleet|Ctrl K|GB\/s|64Gi|– (GiB|W|℃))$/;

function parse(path: string, text: string): ts.SourceFile {
  return ts.createSourceFile(path, text, ts.ScriptTarget.Latest, true);
}

function walk(node: ts.Node, visit: (node: ts.Node) => void): void {
  visit(node);
  node.forEachChild((child) => walk(child, visit));
}

/** Return the texts of a source, and the calls whose text is not a literal. */
export function keysOf(path: string, source: string): { keys: string[]; computed: string[] } {
  const keys: string[] = [];
  const computed: string[] = [];
  walk(parse(path, source), (node) => {
    if (!ts.isCallExpression(node) || !ts.isIdentifier(node.expression)) return;
    const place = FUNCTIONS.get(node.expression.text);
    if (place === undefined) return;
    const text = node.arguments[place];
    if (text && ts.isStringLiteral(text)) keys.push(text.text);
    else computed.push(`${path}: ${node.getText()}`);
  });
  return { keys, computed };
}

/** Return the texts that are shown in a source without a translation. */
export function bareTexts(path: string, source: string): string[] {
  const found: string[] = [];
  const note = (text: string) => {
    const words = text.trim();
    if (/\p{L}{2}/u.test(words) && !NAMES.test(words)) found.push(`${path}: ${words}`);
  };
  walk(parse(path, source), (node) => {
    if (ts.isJsxText(node)) note(node.text);
    else if (ts.isJsxExpression(node) && node.expression && !ts.isJsxAttribute(node.parent))
      shownBy(node.expression).forEach(note);
    else if (ts.isJsxAttribute(node) && SHOWN.has(node.name.getText())) {
      const value = node.initializer;
      if (value && ts.isStringLiteral(value)) note(value.text);
      else if (value && ts.isJsxExpression(value) && value.expression)
        shownBy(value.expression).forEach(note);
    } else if (ts.isPropertyAssignment(node) && SHOWN.has(node.name.getText()))
      shownBy(node.initializer).forEach(note);
  });
  return found;
}

/** Return the literal texts that an expression can have as its value; units after a number are none. */
function shownBy(node: ts.Expression): string[] {
  if (ts.isStringLiteralLike(node)) return [node.text];
  if (ts.isParenthesizedExpression(node)) return shownBy(node.expression);
  if (ts.isConditionalExpression(node)) return [node.whenTrue, node.whenFalse].flatMap(shownBy);
  if (ts.isBinaryExpression(node)) return shownBy(node.right);
  if (!ts.isTemplateExpression(node)) return [];
  return node.templateSpans
    .map((span) => span.literal.text)
    .concat(node.head.text)
    .filter((text) => !/^ ?(GiB|kWh|W|℃|%| \/ )*$/.test(text));
}

/** The sources of the page by their path; dictionaries and the functions themselves have no texts. */
export const pageSources = Object.entries(sources).filter(
  ([path]) => !/\/i18n\/(text|zh|ja)(\.ts|\/)/.test(path),
);
