// A field for a whole number that leaves the text alone while somebody types.
import { useEffect, useState } from "preact/hooks";
import { t } from "../i18n/text";

export function NumberField(props: {
  label: string;
  value: number;
  min: number;
  max: number;
  onChange: (value: number) => void;
}) {
  const { min, max } = props;
  const [text, setText] = useState(String(props.value));
  useEffect(() => {
    if (text.trim() && Number(text) !== props.value) setText(String(props.value));
  }, [props.value]);
  const onInput = (typed: string) => {
    setText(typed);
    const value = Number(typed);
    if (typed.trim() && Number.isInteger(value) && value >= min && value <= max)
      props.onChange(value);
  };
  const valid = text.trim() !== "" && Number(text) >= min && Number(text) <= max;
  const nearest = Math.min(max, Math.max(min, Math.floor(Number(text)) || props.value));
  return (
    <>
      <input
        class="field"
        type="number"
        min={min}
        max={max}
        value={text}
        aria-label={props.label}
        aria-invalid={!valid}
        onInput={(event) => onInput(event.currentTarget.value)}
        onBlur={() => valid || onInput(String(nearest))}
      />
      {!valid && (
        <span class="small failed-words" role="alert">
          {t("{min} to {max}", { min, max })}
        </span>
      )}
    </>
  );
}
