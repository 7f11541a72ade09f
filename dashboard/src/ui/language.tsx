// The choice of the language. Its list is the one of the browser, over the button.
import { LANGUAGES, chooseLanguage, language, type Language } from "../i18n/language";
import { t } from "../i18n/text";
import { Icon } from "./icons";

export function LanguageChoice() {
  return (
    <label class="button ghost language" title={t("Language")}>
      <Icon name="globe" /> <span>{LANGUAGES[language]}</span>
      <select
        aria-label={t("Language")}
        value={language}
        onChange={(event) => chooseLanguage(event.currentTarget.value as Language)}
      >
        {Object.entries(LANGUAGES).map(([key, name]) => (
          <option key={key} value={key}>
            {name}
          </option>
        ))}
      </select>
    </label>
  );
}
