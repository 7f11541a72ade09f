// Log in with a token or at the identity provider; show who is logged in.
import { useEffect, useRef, useState } from "preact/hooks";
import { checkToken, endSession, type ApiError } from "./api/client";
import { live } from "./api/events";
import type { Me } from "./api/types";
import { t } from "./i18n/text";
import icon from "./icon.svg";
import { useResource } from "./state/resource";
import { session } from "./state/session";
import { limitText } from "./ui/format";
import { Icon } from "./ui/icons";

export function Login(props: { reason: string }) {
  const { data } = useResource<Me>("auth/me");
  return (
    <main class="login">
      <div class="login-box">
        <div class="brand">
          <img src={icon} alt="" /> gpufleet
        </div>
        <h1>{t("Log in")}</h1>
        {data?.signIn === "oidc" && (
          <>
            <a
              class="button primary"
              href={`auth/login?page=${encodeURIComponent(location.hash)}`}
              onClick={() => session.forgetToken()}
            >
              <Icon name="key" /> {t("Sign in")}
            </a>
            <p class="muted small">{t("with your organization’s account, or with a token:")}</p>
          </>
        )}
        <TokenForm reason={props.reason} primary={data?.signIn !== "oidc"} />
      </div>
    </main>
  );
}

function TokenForm(props: { reason: string; primary: boolean }) {
  const [token, setToken] = useState("");
  const [problem, setProblem] = useState(props.reason);
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.focus(), []);
  const submit = (event: Event) => {
    event.preventDefault();
    checkToken(token.trim()).then(
      () => {
        session.login(token);
        live.again();
      },
      (error: ApiError) => setProblem(error.message),
    );
  };
  return (
    <form onSubmit={submit}>
      <label>
        {t("Token")}
        <input
          ref={field}
          class="field"
          type="password"
          autocomplete="off"
          required
          value={token}
          onInput={(event) => setToken(event.currentTarget.value)}
        />
      </label>
      {problem && (
        <p class="small failed-words" role="alert">
          {problem}
        </p>
      )}
      <button class={props.primary ? "button primary" : "button"}>
        <Icon name="key" /> {t("Log in")}
      </button>
      <p class="muted small">
        {t("An operator creates tokens with: {command}", {
          command: "gpufleet serve --new-token NAME",
        })}
      </p>
    </form>
  );
}

/** The name of the caller and the button to log out; nothing on a server without login. */
export function Account() {
  const { data } = useResource<Me>("auth/me");
  if (!data?.user) return null;
  return (
    <div class="side-row">
      <span class="account" title={`${data.user}, ${data.role}`}>
        {data.user}
      </span>
      <button
        class="button icon ghost"
        aria-label={t("Log out")}
        title={t("Log out")}
        onClick={() => void endSession().finally(() => session.logout())}
      >
        <Icon name="out" />
      </button>
    </div>
  );
}

/** Say that the figures are of some namespaces only. */
export function LimitedView() {
  const { data } = useResource<Me>("auth/me");
  if (!data?.namespaces) return null;
  return (
    <p class="banner limited" role="status" title={data.namespaces.join(", ")}>
      <Icon name="key" /> <strong>{limitText(data.namespaces)}</strong>{" "}
      <span>{t("Totals and lists count these only; other GPUs are shown as capacity.")}</span>
    </p>
  );
}
