// The menu of a page with saved views and the link to share it.
import { useState } from "preact/hooks";
import { t } from "../i18n/text";
import { removeView, saveView, useViews } from "../state/views";
import { Icon } from "./icons";
import { Popover, usePopover } from "./popover";

export function Views() {
  const [menu, close] = usePopover();
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
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(location.href); // undefined without HTTPS
      setSaid(t("Link copied."));
    } catch {
      setSaid(t("The browser does not allow copying: copy the address above."));
    }
  };
  return (
    <Popover
      menu={menu}
      label={t("Views and sharing")}
      class="button icon"
      button={<Icon name="bookmark" />}
      onToggle={() => setSaid("")}
    >
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
    </Popover>
  );
}
