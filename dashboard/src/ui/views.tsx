// The menu of a page with saved views and the link to share it.
import { useRef, useState } from "preact/hooks";
import { t } from "../i18n/text";
import { removeView, saveView, useViews } from "../state/views";
import { Icon } from "./icons";

export function Views() {
  const menu = useRef<HTMLDetailsElement>(null);
  const views = useViews();
  const [name, setName] = useState("");
  const [said, setSaid] = useState("");
  const save = (event: Event) => {
    event.preventDefault();
    if (!name.trim()) return setSaid(t("Enter a name."));
    saveView(name.trim(), location.hash || "#/");
    setSaid(t("Saved “{name}”.", { name: name.trim() }));
    setName("");
  };
  const copy = () =>
    navigator.clipboard
      .writeText(location.href)
      .then(() => setSaid(t("Link copied.")))
      .catch(() => setSaid(t("The browser does not allow copying: copy the address above.")));
  const close = () => menu.current?.removeAttribute("open");
  return (
    <details
      class="popover"
      ref={menu}
      onToggle={() => setSaid("")}
      onKeyDown={(event) => event.key === "Escape" && close()}
    >
      <summary
        class="button icon"
        aria-label={t("Views and sharing")}
        title={t("Views and sharing")}
      >
        <Icon name="bookmark" />
      </summary>
      <div class="popover-body">
        <button class="button" onClick={copy}>
          <Icon name="share" /> {t("Copy link to this view")}
        </button>
        <form class="view-form" onSubmit={save}>
          <label>
            {t("Save this view as")}
            <input
              class="field"
              value={name}
              maxLength={60}
              onInput={(event) => setName(event.currentTarget.value)}
            />
          </label>
          <button class="button" type="submit">
            {t("Save")}
          </button>
        </form>
        <p class="muted small" role="status">
          {said || t("Views are kept in this browser.")}
        </p>
        {views.length > 0 && (
          <ul class="view-list">
            {views.map((view) => (
              <li key={view.name}>
                <a href={view.href} onClick={close}>
                  {view.name}
                </a>
                <button
                  class="button icon ghost"
                  aria-label={t("Delete view {name}", view)}
                  onClick={() => removeView(view.name)}
                >
                  <Icon name="close" />
                </button>
              </li>
            ))}
          </ul>
        )}
      </div>
    </details>
  );
}
