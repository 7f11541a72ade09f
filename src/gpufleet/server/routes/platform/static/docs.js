// Shows /openapi.json: parameters and responses of each path, and a form to send a request.
"use strict";

const byId = (id) => document.getElementById(id);
let description = null;

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

/* Texts have code in backticks, as Markdown does. */
function prose(text) {
  return (text || "").split("`").map((part, place) => (place % 2 ? element("code", { textContent: part }) : part));
}

function resolved(node) {
  if (!node || !node.$ref) return node;
  return node.$ref.slice(2).split("/").reduce((at, key) => at[key], description);
}

function typeText(schema) {
  schema = resolved(schema) || {};
  if (schema.enum) return schema.enum.join(" | ");
  if (schema.anyOf) return schema.anyOf.map(typeText).join(" | ");
  if (schema.type === "array") return `${typeText(schema.items)}, repeatable`;
  const range = [schema.minimum, schema.maximum].some((bound) => bound !== undefined)
    ? ` ${schema.minimum ?? "…"} to ${schema.maximum ?? "…"}` : "";
  return (schema.format || schema.type || "any") + range;
}

function pretty(value) {
  return JSON.stringify(value, null, 2);
}

function parameterRow(parameter) {
  const schema = resolved(parameter.schema);
  const input = element("input", { name: parameter.name, placeholder: schema.default ?? "" });
  input.dataset.place = parameter.in;
  const name = element("td", { className: parameter.required ? "required" : "", textContent: parameter.name });
  const words = element("td", {}, ...prose(parameter.description), element("br"), element("small", { textContent: typeText(schema) }));
  return element("tr", {}, name, words, element("td", {}, input));
}

function requestUrl(path, form) {
  const query = new URLSearchParams();
  for (const input of form.querySelectorAll("input[data-place]")) {
    if (!input.value) continue;
    if (input.dataset.place === "path") path = path.replace(`{${input.name}}`, encodeURIComponent(input.value));
    else query.append(input.name, input.value);
  }
  return query.size ? `${path}?${query}` : path;
}

async function request(method, url, body) {
  const headers = {};
  if (byId("token").value) headers.Authorization = `Bearer ${byId("token").value}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  return fetch(url.slice(1), { method, headers, body }); /* relative, for proxies with a prefix */
}

async function sendRequest(method, path, form, output) {
  const body = form.querySelector("textarea")?.value;
  const url = requestUrl(path, form);
  output.replaceChildren(`${method} ${url} …`);
  try {
    const started = performance.now();
    const response = await request(method, url, body);
    let text = await response.text();
    try { text = pretty(JSON.parse(text)); } catch { /* not JSON */ }
    const warning = response.headers.get("warning");
    const line = `${response.status} in ${Math.round(performance.now() - started)} ms, trace ${response.headers.get("x-trace-id")}`;
    output.replaceChildren(
      element("p", { className: response.ok ? "" : "bad", textContent: `${method} ${url} → ${line}` }),
      ...(warning ? [element("p", { className: "bad", textContent: warning })] : []),
      element("pre", { textContent: text.slice(0, 200000) }),
    );
  } catch (error) {
    output.replaceChildren(element("p", { className: "bad", textContent: String(error) }));
  }
}

function operationForm(method, path, operation) {
  const form = element("form");
  if (operation.parameters?.length) form.append(element("h3", { textContent: "Parameters" }), element("table", {}, ...operation.parameters.map(parameterRow)));
  const sample = operation.requestBody?.content["application/json"];
  if (sample) form.append(element("h3", { textContent: "Body" }), element("textarea", { value: pretty(sample.example ?? null), ariaLabel: "Body" }));
  const output = element("div");
  form.append(element("p", {}, element("button", { textContent: "Send" })), output);
  form.addEventListener("submit", (event) => { event.preventDefault(); sendRequest(method, path, form, output); });
  return form;
}

function responses(operation) {
  const success = Object.entries(operation.responses).find(([status]) => status.startsWith("2"));
  const [mediaType, content] = Object.entries(resolved(success[1]).content ?? {})[0] ?? ["", {}];
  const nodes = [element("h3", { textContent: `Response ${success[0]} (${mediaType})` })];
  if (content.example !== undefined) nodes.push(element("pre", { textContent: pretty(content.example) }));
  const schema = element("details", {}, element("summary", { textContent: "Schema" }), element("pre", { textContent: pretty(content.schema ?? {}) }));
  return [...nodes, schema];
}

function card(method, path, operation) {
  const inside = element("div", { className: "inside" });
  const summary = element("summary", {}, element("span", { className: `method ${method}`, textContent: method.toUpperCase() }),
    element("code", { textContent: path }), element("span", {}, ...prose(operation.summary)));
  const made = element("details", { id: operation.operationId }, summary, inside);
  made.dataset.words = `${method} ${path} ${operation.summary}`.toLowerCase();
  made.addEventListener("toggle", () => {
    if (inside.childElementCount) return;
    if (operation.description) inside.append(element("p", {}, ...prose(operation.description)));
    inside.append(operationForm(method.toUpperCase(), path, operation), ...responses(operation));
  });
  return made;
}

function show() {
  byId("version").textContent = description.info.version;
  byId("introduction").replaceChildren(...prose(description.info.description));
  const operations = Object.entries(description.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => [method, path, operation]));
  byId("operations").replaceChildren(...description.tags.flatMap((tag) => {
    const cards = operations.filter(([, , operation]) => operation.tags.includes(tag.name)).map((each) => card(...each));
    return cards.length ? [element("h2", {}, ...prose(tag.description)), ...cards] : [];
  }));
  const target = location.hash && byId(location.hash.slice(1));
  if (target) { target.open = true; target.scrollIntoView(); }
}

async function load() {
  const response = await request("GET", "/openapi.json");
  if (!response.ok) {
    byId("operations").textContent = response.status === 401 ? "Enter a token above to log in." : `Cannot load the API description (${response.status}).`;
    return;
  }
  description = await response.json();
  show();
}

byId("login").addEventListener("submit", (event) => { event.preventDefault(); load(); });
byId("token").addEventListener("change", load);
byId("search").addEventListener("input", () => {
  const text = byId("search").value.toLowerCase();
  for (const each of document.querySelectorAll("main > details")) each.hidden = !each.dataset.words.includes(text);
});
load();
