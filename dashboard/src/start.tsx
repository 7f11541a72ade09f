// Render the page, once its texts are loaded.
import { render } from "preact";
import { App } from "./app";
import { session } from "./state/session";

session.showTheme();
addEventListener("beforeprint", () => session.setPrinting(true));
addEventListener("afterprint", () => session.setPrinting(false));
render(<App />, document.getElementById("app") as HTMLElement);
