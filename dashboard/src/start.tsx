// Render the page, once its texts are loaded.
import { render } from "preact";
import { App } from "./app";
import { session } from "./state/session";

document.documentElement.dataset.theme = session.theme;
// Print in the light theme.
addEventListener("beforeprint", () => (document.documentElement.dataset.theme = "light"));
addEventListener("afterprint", () => (document.documentElement.dataset.theme = session.theme));
render(<App />, document.getElementById("app") as HTMLElement);
