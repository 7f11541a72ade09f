// Ask the planner whether pods would fit now, where, and otherwise when and why not.
import type { FitAnswer, WorkloadMetadata } from "../../api/types";
import { plural, rich, t } from "../../i18n/text";
import { useResource } from "../../state/resource";
import { link, setQuery } from "../../state/route";
import { Badge, Choice, Loaded, Select } from "../../ui/components";
import { Estimate } from "../../ui/estimate";
import { modelWords, shortModel } from "../../ui/format";
import { NumberField } from "../../ui/number";

const UNAVAILABLE = t("This cluster takes no pods: it is not on Kubernetes");
const GROUPINGS = [
  ["any", t("Any GPUs")],
  ["contiguous", t("Contiguous")],
  ["island", t("One island")],
] as const;
type GroupingName = (typeof GROUPINGS)[number][0];
const MOST_GPUS = 64;
const MOST_PODS = 64;
const NODES = 8;
const QUANTITY = /^(\d+\.?\d*|\.\d+)(m|k|M|G|T|Ki|Mi|Gi|Ti)?$/;

type Query = Record<string, string>;

export function FitForm(props: { query: Query }) {
  const { query } = props;
  const gpus = within(query["count"], 4, MOST_GPUS);
  const pods = within(query["pods"], 1, MOST_PODS);
  const grouping = (query["together"] ?? "contiguous") as GroupingName;
  const { cluster, model = "", cpu = "", memory = "", tolerate = "", from = "" } = query;
  const metadata = useResource<WorkloadMetadata>("api/workloadMetadata", { cluster });
  const models = metadata.data?.models ?? [];
  const invalid = !isAmount(cpu) || !isAmount(memory);
  const fit = useResource<FitAnswer>(
    invalid ? null : "api/queue/fit",
    { cluster, gpus, pods, model, grouping, cpu, memory, tolerations: tolerate, namespace: from },
    { every: 15_000, on: ["gpu", "node", "claim"], keep: true },
  );
  return (
    <>
      <div class="form">
        <label class="named">
          {t("GPUs")}
          <NumberField
            label={t("GPUs")}
            value={gpus}
            min={1}
            max={MOST_GPUS}
            onChange={(value) => setQuery({ count: String(value) })}
          />
        </label>
        <label class="named">
          {t("Pods")}
          <NumberField
            label={t("Pods")}
            value={pods}
            min={1}
            max={MOST_PODS}
            onChange={(value) => setQuery({ pods: value > 1 ? String(value) : undefined })}
          />
        </label>
        <Select
          label={t("Model")}
          value={model}
          any={t("Any model")}
          options={models}
          words={modelWords(models)}
          onChange={(value) => setQuery({ model: value || undefined })}
        />
        <Select
          label={t("From namespace")}
          value={from}
          any={t("Any namespace")}
          options={metadata.data?.namespaces ?? []}
          onChange={(value) => setQuery({ from: value || undefined })}
        />
        <Choice
          label={t("Grouping")}
          value={grouping}
          options={GROUPINGS}
          onChange={(value) => setQuery({ together: value })}
        />
        <TextField
          name="cpu"
          label={t("CPUs per pod")}
          value={cpu}
          example="8"
          valid={isAmount(cpu)}
        />
        <TextField
          name="memory"
          label={t("Memory per pod")}
          value={memory}
          example="64Gi"
          valid={isAmount(memory)}
        />
        <TextField
          name="tolerate"
          label={t("Tolerated taints")}
          value={tolerate}
          example={t("keys, or *")}
          valid
        />
      </div>
      {invalid ? null : (
        <Loaded of={fit} missing={UNAVAILABLE} lines={2}>
          {(answer) => <Verdict answer={answer} gpus={gpus} pods={pods} model={model} />}
        </Loaded>
      )}
      <p class="muted small form-note">
        {t(
          "The planner counts free, healthy GPUs, cordons, taints, CPU and memory, and with a namespace its GpuQueue. It does not know affinity and volumes of your pods.",
        )}
      </p>
    </>
  );
}

/** Return a whole number of the address, 1 to `most`. */
function within(text: string | undefined, otherwise: number, most: number): number {
  return Math.min(most, Math.max(1, Math.floor(Number(text ?? otherwise)) || 1));
}

function isAmount(text: string): boolean {
  return text === "" || QUANTITY.test(text);
}

function TextField(props: {
  name: string;
  label: string;
  value: string;
  example: string;
  valid: boolean;
}) {
  return (
    <label class="named">
      {props.label}
      <input
        class="field amount"
        value={props.value}
        placeholder={props.example}
        aria-label={props.label}
        aria-invalid={!props.valid}
        onInput={(event) => setQuery({ [props.name]: event.currentTarget.value || undefined })}
      />
      {!props.valid && (
        <span class="small failed-words" role="alert">
          {t("such as {example}", props)}
        </span>
      )}
    </label>
  );
}

function Verdict(props: { answer: FitAnswer; gpus: number; pods: number; model: string }) {
  const { answer, gpus, pods } = props;
  const model = props.model ? shortModel(props.model) : "";
  const each = model
    ? plural(gpus, "{n} {model} GPU", "{n} {model} GPUs", { model })
    : plural(gpus, "{n} GPU", "{n} GPUs");
  const what = pods > 1 ? t("{pods} pods with {gpus} each", { pods, gpus: each }) : each;
  const nodes = <strong class="num">{plural(answer.totalNodes, "{n} node", "{n} nodes")}</strong>;
  return (
    <div class="verdict" role="status">
      {answer.fits ? (
        <p>
          <Badge word={t("Yes")} tone="good" /> {t("{what} would start now.", { what })}{" "}
          {pods > 1
            ? rich("{nodes} could take one of them.", { nodes })
            : rich("{nodes} could take it.", { nodes })}
        </p>
      ) : (
        <>
          <p>
            <Badge word={t("No")} tone="warn" /> {t("{what} would wait:", { what })}{" "}
            {answer.sentence}.
          </p>
          {answer.estimate && <Estimate estimate={answer.estimate} />}
        </>
      )}
      <p class="muted small nodes-line">
        {answer.nodes.slice(0, NODES).map((node) => (
          <a class="chip" key={node.name} href={link(["nodes", node.name])}>
            {node.name} · {t("{n} free", { n: node.free })}
          </a>
        ))}
        {answer.totalNodes > NODES && (
          <span>{t("and {more} more", { more: answer.totalNodes - NODES })}</span>
        )}
      </p>
      {answer.remedies.length > 0 && (
        <>
          <h3>{pods > 1 ? t("Ways to make one of the pods fit") : t("Ways to make it fit")}</h3>
          <ul class="bullets">
            {answer.remedies.map((remedy) => (
              <li key={remedy}>{remedy}</li>
            ))}
          </ul>
        </>
      )}
    </div>
  );
}
