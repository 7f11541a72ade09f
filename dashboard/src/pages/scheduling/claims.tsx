// The claims of a cluster by phase or gang, with the pods that have them.
import { addressOf } from "../../api/client";
import type { ClaimPage } from "../../api/types";
import { stateText } from "../../i18n/states";
import { plural, t } from "../../i18n/text";
import { useResource } from "../../state/resource";
import { link, pageOf, setQuery } from "../../state/route";
import { Badge, Card, Choice, Empty, Loaded, Pager } from "../../ui/components";
import { NONE, count, list } from "../../ui/format";
import { Explain } from "../claim";
import { ClaimLink, GangLink, PodLink } from "./links";
import { Table } from "../../ui/table";

const UNAVAILABLE = t("This server has no Kubernetes cluster with claims");
const PHASES = [
  ["Pending", t("Pending")],
  ["Reserved", t("Reserved")],
  ["Bound", t("Bound")],
  ["Failed", t("Failed")],
  ["all", t("All")],
] as const;
type Phase = (typeof PHASES)[number][0];
const SIZE = 20;
const MOST_PODS = 3;

export function Claims(props: { query: Record<string, string> }) {
  const { claims: page = "1", cluster, gang, namespace } = props.query;
  const phase = props.query["phase"] ?? (gang ? "all" : "Pending");
  const params = { cluster, gang, namespace, phase: phase === "all" ? undefined : phase };
  const claims = useResource<ClaimPage>(
    "api/claims",
    { ...params, pageNum: pageOf(page), pageSize: SIZE },
    { every: 15_000, on: ["claim", "workload"], keep: true },
  );
  return (
    <Card
      title={t("Claims")}
      note={gang && t("of gang {gang}", { gang })}
      flush
      csv={addressOf("api/claims", { ...params, pageSize: 1000 })}
      aside={
        <span class="page-tools">
          {gang && (
            <button
              class="button"
              onClick={() => setQuery({ gang: undefined, namespace: undefined, claims: undefined })}
            >
              {t("All claims")}
            </button>
          )}
          <Choice
            label={t("Phase")}
            value={phase as Phase}
            options={PHASES}
            onChange={(value) =>
              setQuery({
                phase: value === "Pending" && !gang ? undefined : value,
                claims: undefined,
              })
            }
          />
        </span>
      }
    >
      <Loaded of={claims} missing={UNAVAILABLE}>
        {(data) =>
          data.total ? (
            <>
              <ClaimTable page={data} />
              <Pager
                page={pageOf(page)}
                size={SIZE}
                total={data.total}
                onChange={(number) => setQuery({ claims: String(number) })}
              />
            </>
          ) : (
            <Empty
              title={
                phase === "all"
                  ? t("No claims")
                  : phase === "Pending"
                    ? t("No pending claims")
                    : t("No claims in phase {phase}", { phase: stateText(phase) })
              }
            >
              {phase === "Pending"
                ? t("Every claim has its GPUs.")
                : t("GpuClaims of this cluster appear here.")}
            </Empty>
          )
        }
      </Loaded>
    </Card>
  );
}

function ClaimTable(props: { page: ClaimPage }) {
  return (
    <Table label={t("Claims")}>
      <thead>
        <tr>
          <th>{t("Claim")}</th>
          <th>{t("Phase")}</th>
          <th class="right">{t("GPUs")}</th>
          <th>{t("Request")}</th>
          <th>{t("Node")}</th>
          <th>{t("Gang")}</th>
          <th>{t("Reason")}</th>
        </tr>
      </thead>
      <tbody>
        {props.page.data.map((claim) => (
          <tr key={`${claim.namespace}/${claim.name}`}>
            <td class="name">
              <ClaimLink namespace={claim.namespace} name={claim.name} />
              <div class="muted small">{claim.namespace}</div>
            </td>
            <td>
              <Badge word={claim.phase || "Pending"} />
            </td>
            <td class="right">{count(claim.count)}</td>
            <td class="soft">
              {list(
                [claim.policy, claim.exclusivity === "Exclusive" ? "" : claim.exclusivity].filter(
                  Boolean,
                ),
              )}
            </td>
            <td class="words">
              {claim.nodeName ? (
                <a href={link(["nodes", claim.nodeName])}>{claim.nodeName}</a>
              ) : (
                NONE
              )}
              {claim.gpuIds.length > 0 && (
                <span class="muted num"> GPU {list(claim.gpuIds.map(String))}</span>
              )}
              {claim.allocations.slice(0, MOST_PODS).map((pod) => (
                <div class="small" key={pod.podUid}>
                  <PodLink uid={pod.podUid} name={pod.podName} />
                </div>
              ))}
              {claim.allocations.length > MOST_PODS && (
                <div class="muted small">
                  {plural(
                    claim.allocations.length - MOST_PODS,
                    "and {n} more pod",
                    "and {n} more pods",
                  )}
                </div>
              )}
            </td>
            <td class="soft">
              {claim.gang ? <GangLink namespace={claim.namespace} name={claim.gang} /> : NONE}
            </td>
            <td class="words">
              {claim.message && <div class="muted small">{claim.message}</div>}
              <Explain claim={claim} />
            </td>
          </tr>
        ))}
      </tbody>
    </Table>
  );
}
