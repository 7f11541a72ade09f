// A menu below a button. Escape, a click elsewhere and a choice in it close it.
import type { ComponentChildren, RefObject } from "preact";
import { useEffect, useRef } from "preact/hooks";

type Menu = RefObject<HTMLDetailsElement | null>;

/** Return the reference of a menu, and a function that closes it. */
export function usePopover(): [Menu, () => void] {
  const menu = useRef<HTMLDetailsElement>(null);
  return [menu, () => menu.current?.removeAttribute("open")];
}

export function Popover(props: {
  menu: Menu;
  label: string;
  button: ComponentChildren;
  class: string;
  onToggle?: () => void;
  children: ComponentChildren;
}) {
  const { menu } = props;
  useEffect(() => {
    const close = (event: Event) => {
      const outside = !menu.current?.contains(event.target as Node);
      if (outside) menu.current?.removeAttribute("open");
    };
    addEventListener("pointerdown", close);
    return () => removeEventListener("pointerdown", close);
  }, []);
  const onKey = (event: KeyboardEvent) => {
    if (event.key !== "Escape" || !menu.current?.open) return;
    menu.current.removeAttribute("open");
    menu.current.querySelector("summary")?.focus();
  };
  return (
    <details class="popover" ref={menu} onToggle={props.onToggle} onKeyDown={onKey}>
      <summary class={props.class} aria-label={props.label} title={props.label}>
        {props.button}
      </summary>
      {props.children}
    </details>
  );
}
