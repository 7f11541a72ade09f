// The leases of GPUs, found by node, pod, namespace or claim.
import { addressOf } from "../../api/client";
import type { LeasePage, WorkloadMetadata } from "../../api/types";
import { t } from "../../i18n/text";
import { useResource } from "../../state/resource";
import { link, pageOf, setQuery } from "../../state/route";
import {
  Ago,
  Badge,
  Card,
  Choice,
  Empty,
  Loaded,
  Pager,
  Search,
  Select,
} from "../../ui/components";
import { NONE, percent } from "../../ui/format";
import { ClaimLink, PodLink } from "./links";
import { Table } from "../../ui/table";

const UNAVAILABLE = t("This server has no Kubernetes cluster with claims");
const SIZE = 20;
const ORIGINS = [
  ["", t("All")],
  ["false", t("Own")],
  ["true", t("External")],
] as const;
type Origin = (typeof ORIGINS)[number][0];

export function Leases(props: { query: Record<string, string> }) {
  const { leases: page = "1", cluster, lease = "", leasens = "", foreign = "" } = props.query;
  const params = { cluster, search: lease, namespace: leasens, foreign };
  const leases = useResource<LeasePage>(
    "api/leases",
    { ...params, pageNum: pageOf(page), pageSize: SIZE },
    { every: 20_000, on: ["claim"], keep: true },
  );
  const metadata = useResource<WorkloadMetadata>("api/workloadMetadata", { cluster });
  const narrow = (change: Record<string, string | undefined>) =>
    setQuery({ ...change, leases: undefined });
  return (
    <Card
      title={t("Leases")}
      note={t("one per allocated GPU")}
      flush
      csv={addressOf("api/leases", { ...params, pageSize: 1000 })}
      aside={
        <span class="page-tools">
          <Search
            label={t("Find a node, pod or claim")}
            value={lease}
            onChange={(value) => narrow({ lease: value || undefined })}
          />
          <Select
            label={t("Namespace of leases")}
            value={leasens}
            any={t("All namespaces")}
            options={metadata.data?.namespaces ?? []}
            onChange={(value) => narrow({ leasens: value || undefined })}
          />
          <Choice
            label={t("Origin")}
            value={foreign as Origin}
            options={ORIGINS}
            onChange={(value) => narrow({ foreign: value || undefined })}
          />
        </span>
      }
    >
      <Loaded of={leases} missing={UNAVAILABLE}>
        {(data) =>
          data.total ? (
            <>
              <LeaseTable page={data} />
              <Pager
                page={pageOf(page)}
                size={SIZE}
                total={data.total}
                onChange={(number) => setQuery({ leases: String(number) })}
              />
            </>
          ) : (
            <Empty title={lease || leasens || foreign ? t("No lease matches") : t("No leases")}>
              {lease || leasens || foreign
                ? t("Change the search or the filters.")
                : t("No GPU is allocated through claims.")}
            </Empty>
          )
        }
      </Loaded>
    </Card>
  );
}

function LeaseTable(props: { page: LeasePage }) {
  return (
    <Table label={t("Leases")}>
      <thead>
        <tr>
          <th>{t("Node")}</th>
          <th class="right">GPU</th>
          <th>{t("Held by")}</th>
          <th>{t("Claim")}</th>
          <th>{t("Since")}</th>
        </tr>
      </thead>
      <tbody>
        {props.page.data.map((lease) => (
          <tr key={lease.name}>
            <td class="name">
              <a href={link(["nodes", lease.node], { gpu: String(lease.gpu) })}>{lease.node}</a>{" "}
              {lease.foreign && <Badge word="external" tone="warn" />}
            </td>
            <td class="right">{lease.gpu}</td>
            <td>
              {lease.holders.map((holder) => (
                <div key={holder.podUid}>
                  <PodLink uid={holder.podUid} name={holder.podName || holder.podUid} />{" "}
                  <span class="muted small">{holder.namespace}</span>
                  {holder.share != null && holder.share < 1 && (
                    <span class="muted"> {percent(holder.share)}</span>
                  )}
                </div>
              ))}
            </td>
            <td class="soft">
              {claimsOf(lease).map(([namespace, name]) => (
                <div key={`${namespace}/${name}`}>
                  <ClaimLink namespace={namespace} name={name} />
                </div>
              ))}
            </td>
            <td>{lease.acquiredAt ? <Ago at={Date.parse(lease.acquiredAt)} /> : NONE}</td>
          </tr>
        ))}
      </tbody>
    </Table>
  );
}

/** Return namespace and name of the claims of a lease, each once. */
function claimsOf(lease: LeasePage["data"][number]): [string, string][] {
  const found = new Map<string, [string, string]>();
  for (const { namespace, claim } of lease.holders)
    if (claim) found.set(`${namespace}/${claim}`, [namespace, claim]);
  return [...found.values()];
}
