// Load the texts before all modules of the page: their constants have texts, too. A top-level await in `text.ts` would do
// the same, but modules that import it at the same time fail in Safari (WebKit bug 242740).
import { locale } from "./i18n/language";
import { loadTexts } from "./i18n/text";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/shell.css";
import "./styles/components.css";
import "./styles/charts.css";
import "./styles/pages.css";

document.documentElement.lang = locale;
void loadTexts().then(() => import("./start"));
