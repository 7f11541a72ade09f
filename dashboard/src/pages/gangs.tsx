// The gangs of a cluster with their placed pods and nodes.
import { useMemo } from "preact/hooks";
import type { ClaimPage } from "../api/types";
import { t } from "../i18n/text";
import { useResource } from "../state/resource";
import { link } from "../state/route";
import { NONE, count } from "../ui/format";
import { Badge, Card, Loaded } from "../ui/components";
import { Explain } from "./claim";
import { gangsOf, type Gang } from "./gang";
import { GangLink } from "./scheduling/links";
import { Table } from "../ui/table";

const MOST_CLAIMS = 1000;
const SHOWN = 12;
const NODES = 4;

/** A card with the gangs; nothing if there are none. */
export function Gangs(props: { cluster: string | undefined }) {
  const claims = useResource<ClaimPage>(
    "api/claims",
    { cluster: props.cluster, gang: "*", pageSize: MOST_CLAIMS },
    { every: 20_000, on: ["claim", "workload"] },
  );
  const gangs = useMemo(() => gangsOf(claims.data?.data ?? []), [claims.data]);
  if (!gangs.length) return null;
  const waiting = gangs.filter((gang) => gang.phase !== "Bound").length;
  return (
    <div class="grid">
      <Card
        title={t("Gangs")}
        note={
          waiting
            ? t("{waiting} of {all} waiting; a gang starts with all of its pods or none", {
                waiting,
                all: gangs.length,
              })
            : t("all complete; a gang starts with all of its pods or none")
        }
        flush
      >
        <Loaded of={claims}>{() => <GangTable gangs={gangs.slice(0, SHOWN)} />}</Loaded>
        {gangs.length > SHOWN && (
          <p class="muted small more">{t("and {more} more", { more: gangs.length - SHOWN })}</p>
        )}
      </Card>
    </div>
  );
}

function GangTable(props: { gangs: Gang[] }) {
  return (
    <Table label={t("Gangs")}>
      <thead>
        <tr>
          <th>{t("Gang")}</th>
          <th>{t("State")}</th>
          <th class="right">{t("Pods placed")}</th>
          <th class="right">{t("GPUs")}</th>
          <th>{t("Node")}</th>
          <th>{t("Reason")}</th>
        </tr>
      </thead>
      <tbody>
        {props.gangs.map((gang) => (
          <tr key={`${gang.namespace}/${gang.name}`}>
            <td class="name">
              <GangLink namespace={gang.namespace} name={gang.name} />
              <div class="muted small">{gang.namespace}</div>
            </td>
            <td>
              <Badge word={gang.phase} tone={gang.phase === "Bound" ? "good" : "warn"} />
            </td>
            <td class="right">
              {gang.size === null
                ? count(gang.placed)
                : t("{part} of {all}", { part: gang.placed, all: gang.size })}
            </td>
            <td class="right">{count(gang.gpus)}</td>
            <td class="words">
              <Where nodes={gang.nodes} />
            </td>
            <td class="words">
              {gang.claims.slice(0, 1).map((claim) => (
                <Explain key={claim.name} claim={claim} />
              ))}
            </td>
          </tr>
        ))}
      </tbody>
    </Table>
  );
}

function Where(props: { nodes: string[] }) {
  if (!props.nodes.length) return <>{NONE}</>;
  return (
    <>
      {props.nodes.slice(0, NODES).map((node, place) => (
        <span key={node}>
          {place > 0 && ", "}
          <a href={link(["nodes", node])}>{node}</a>
        </span>
      ))}
      {props.nodes.length > NODES && (
        <span class="muted"> {t("and {more} more", { more: props.nodes.length - NODES })}</span>
      )}
    </>
  );
}
