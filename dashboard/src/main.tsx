import { render } from "preact";
import { App } from "./app";
import { locale } from "./i18n/language";
import { session } from "./state/session";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/shell.css";
import "./styles/components.css";
import "./styles/charts.css";
import "./styles/pages.css";

document.documentElement.lang = locale;
document.documentElement.dataset.theme = session.theme;
// Print in the light theme.
addEventListener("beforeprint", () => (document.documentElement.dataset.theme = "light"));
addEventListener("afterprint", () => (document.documentElement.dataset.theme = session.theme));
render(<App />, document.getElementById("app") as HTMLElement);
