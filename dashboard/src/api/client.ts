// API client: one function for all three envelopes, with bearer token and ETags.
import { t } from "../i18n/text";
import { session } from "../state/session";

export type Params = Record<string, string | number | undefined>;

/** An API error with the message of the server. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly trace = "",
  ) {
    super(message);
  }

  /** Whether the route or object does not exist. */
  get missing(): boolean {
    return this.status === 404;
  }
}

interface Envelope {
  data?: unknown;
  message?: string | null;
  error?: string | null;
}

interface Kept {
  etag: string;
  data: unknown;
}

const MOST_KEPT = 60;
/** Request timeout in milliseconds. */
const LONGEST = 30_000;
const kept = new Map<string, Kept>();

/** Return an API URL relative to the page, so that it works under any proxy prefix. */
export function addressOf(path: string, params: Params = {}): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    if (value !== undefined && value !== "") query.set(name, String(value));
  }
  const words = query.toString();
  return words ? `${path}?${words}` : path;
}

export function authorization(): Record<string, string> {
  return session.token ? { authorization: `Bearer ${session.token}` } : {};
}

/** Fetch data; returns the identical object while the server answers 304. */
export async function read<T>(address: string, signal?: AbortSignal): Promise<T> {
  const known = kept.get(address);
  const headers = { ...authorization(), ...(known ? { "if-none-match": known.etag } : {}) };
  const limit = new AbortController();
  const end = () => limit.abort();
  const timer = setTimeout(end, LONGEST);
  signal?.addEventListener("abort", end);
  let response: Response;
  let data: unknown;
  try {
    response = await fetch(address, { headers, cache: "no-store", signal: limit.signal });
    if (response.status === 304 && known) return known.data as T;
    data = await unwrapped(response);
  } catch (error) {
    if (signal?.aborted || error instanceof ApiError) throw error;
    throw new ApiError(
      0,
      limit.signal.aborted
        ? t("the server did not answer within {seconds} s", { seconds: LONGEST / 1000 })
        : t("the server can't be reached"),
    );
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", end);
  }
  const etag = response.headers.get("etag");
  kept.delete(address);
  if (etag) kept.set(address, { etag, data });
  for (const old of kept.keys()) {
    if (kept.size <= MOST_KEPT) break;
    kept.delete(old);
  }
  return data as T;
}

/** Fetch a response without envelope, such as a CSV file. */
export async function readText(address: string, accept = "*/*"): Promise<string> {
  const headers = { ...authorization(), accept };
  const response = await fetch(address, { headers, cache: "no-store" }).catch(() => {
    throw new ApiError(0, t("the server can't be reached"));
  });
  if (!response.ok) await unwrapped(response); // throws the error in the envelope
  return response.text();
}

/** Throw what the server says about a token. One request: each wrong token counts against this address. */
export async function checkToken(token: string): Promise<void> {
  const headers = { authorization: `Bearer ${token}` };
  const response = await fetch("api/clusters", { headers, cache: "no-store" }).catch(() => {
    throw new ApiError(0, t("the server can't be reached"));
  });
  await unwrapped(response);
}

/** POST a body and return the data of the response. */
export async function send<T>(address: string, body: unknown): Promise<T> {
  const headers = { ...authorization(), "content-type": "application/json" };
  const response = await fetch(address, {
    method: "POST",
    headers,
    body: JSON.stringify(body),
  }).catch(() => {
    throw new ApiError(0, t("the server can't be reached"));
  });
  return (await unwrapped(response)) as T;
}

/** End the session of a sign-in at the identity provider; does nothing for a login with a token. */
export async function endSession(): Promise<void> {
  if (session.token) return;
  const headers = { "content-type": "application/json" };
  await fetch("auth/logout", { method: "POST", headers, body: "{}" }).catch(() => undefined);
}

async function unwrapped(response: Response): Promise<unknown> {
  const body = (await response.json().catch((error: unknown) => {
    if (error instanceof SyntaxError) return null; // not from gpufleet, for example an error page of a proxy
    throw error;
  })) as Envelope | null;
  // One of the envelopes has the status text in `message` and the sentence in `error`.
  const sentence = body?.error || body?.message || "";
  if (response.status === 401) session.needLogin(sentence);
  if (!response.ok || body === null) {
    const words = sentence || t("the server answered {status}", { status: response.status });
    throw new ApiError(response.status, words, response.headers.get("x-trace-id") ?? "");
  }
  return body.data;
}
