// A modal dialog; the browser keeps the focus inside and closes it with Escape.
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";

export function Dialog(props: {
  label: string;
  class?: string;
  onClose: () => void;
  children: ComponentChildren;
}) {
  const element = useRef<HTMLDialogElement>(null);
  useEffect(() => element.current?.showModal(), []);
  return (
    <dialog
      ref={element}
      class={`dialog ${props.class ?? ""}`}
      aria-label={props.label}
      onClose={props.onClose}
      onClick={(event) => event.target === element.current && props.onClose()}
    >
      {props.children}
    </dialog>
  );
}
