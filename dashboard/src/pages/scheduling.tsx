// Scheduling page: pending claims with reasons, gangs, leases, free capacity.
import { useMemo } from "preact/hooks";
import type { ClaimPage, GpuMap, LeasePage } from "../api/types";
import { useResource } from "../state/resource";
import { link, setQuery } from "../state/route";
import { NONE, count, percent, shortModel } from "../ui/format";
import { Ago, Badge, Card, Choice, Empty, PageHead, Pager, Select, Loaded } from "../ui/components";
import { NumberField } from "../ui/number";
import { Explain, Explanation } from "./claim";
import { Gangs } from "./gangs";
import { byFree, fittingNodes, capacityOf, type NodeCapacity, type Grouping } from "./capacity";

const UNAVAILABLE = "This server has no Kubernetes cluster with claims";
const TOGETHER = [
  ["any", "Any GPUs"],
  ["contiguous", "Contiguous"],
  ["island", "One island"],
] as const;
const PHASES = [
  ["Pending", "Pending"],
  ["Reserved", "Reserved"],
  ["Bound", "Bound"],
  ["Failed", "Failed"],
  ["all", "All"],
] as const;
type Phase = (typeof PHASES)[number][0];
const SIZE = 20;
const MOST_GPUS = 64;

export function SchedulingPage(props: { query: Record<string, string> }) {
  const { cluster, claim } = props.query;
  const map = useResource<GpuMap>(
    "api/v1/gpu/map",
    { cluster },
    { every: 15_000, on: ["gpu", "node"] },
  );
  const capacities = useMemo(() => (map.data ? capacityOf(map.data) : []), [map.data]);
  const [namespace = "", name = ""] = (claim ?? "").split("/");
  return (
    <>
      <PageHead title="Scheduling" sub="Pending claims, gangs, leases and free capacity" />
      <div class="grid wide-left">
        <Card title="Would it fit now?">
          <Loaded of={map}>{() => <WhatIf capacities={capacities} query={props.query} />}</Loaded>
        </Card>
        <Card title="Free GPUs by node" note="fragmentation">
          <Loaded of={map}>{() => <Fragments capacities={capacities} />}</Loaded>
        </Card>
      </div>
      {claim && (
        <div class="grid">
          <Card
            title={`Why is ${name} waiting?`}
            note={namespace}
            aside={
              <button class="button" onClick={() => setQuery({ claim: undefined })}>
                Close
              </button>
            }
          >
            <Explanation namespace={namespace} name={name} cluster={cluster} />
          </Card>
        </div>
      )}
      <div class="grid">
        <Claims query={props.query} />
      </div>
      <Gangs cluster={cluster} />
      <div class="grid">
        <Leases query={props.query} />
      </div>
    </>
  );
}

function WhatIf(props: { capacities: NodeCapacity[]; query: Record<string, string> }) {
  const requested = Math.min(MOST_GPUS, Math.max(1, Number(props.query["count"] ?? "4") || 1));
  const together = (props.query["together"] ?? "contiguous") as Grouping;
  const model = props.query["model"] ?? "";
  const models = useMemo(
    () => [...new Set(props.capacities.map((node) => node.model))].filter(Boolean).sort(),
    [props.capacities],
  );
  const fits = useMemo(
    () => fittingNodes(props.capacities, requested, together, model),
    [props.capacities, requested, together, model],
  );
  return (
    <>
      <div class="form">
        <label class="named">
          GPUs
          <NumberField
            label="GPUs"
            value={requested}
            min={1}
            max={MOST_GPUS}
            onChange={(value) => setQuery({ count: String(value) })}
          />
        </label>
        <Select
          label="Model"
          value={model}
          any="Any model"
          options={models}
          onChange={(value) => setQuery({ model: value || undefined })}
        />
        <Choice
          label="Grouping"
          value={together}
          options={TOGETHER}
          onChange={(value) => setQuery({ together: value })}
        />
      </div>
      <div class="verdict" role="status">
        {fits.length ? (
          <>
            <p>
              <Badge word="Yes" tone="good" />{" "}
              <strong class="num">
                {count(fits.length)} {fits.length === 1 ? "node" : "nodes"}
              </strong>{" "}
              could take {requested} {model ? `${shortModel(model)} ` : ""}
              {requested === 1 ? "GPU" : "GPUs"} now.
            </p>
            <p class="muted small nodes-line">
              {fits.slice(0, 8).map((node) => (
                <a class="chip" key={node.node} href={link(["nodes", node.node])}>
                  {node.node} · {node.free} free
                </a>
              ))}
              {fits.length > 8 && <span>and {count(fits.length - 8)} more</span>}
            </p>
          </>
        ) : (
          <p>
            <Badge word="No" tone="warn" /> {refusal(props.capacities, requested, model)}
          </p>
        )}
      </div>
      <p class="muted small form-note">
        Considers free, healthy GPUs on schedulable nodes. Ignores taints, CPU and memory.
      </p>
    </>
  );
}

function refusal(capacities: NodeCapacity[], requested: number, model: string): string {
  const fit = capacities.filter((node) => !model || node.model === model);
  const free = fit.reduce((sum, node) => sum + node.free, 0);
  const most = Math.max(0, ...fit.map((node) => node.free));
  return free < requested
    ? `${free} ${free === 1 ? "is" : "are"} free in total, ${requested} requested.`
    : `${count(free)} are free in total, but no node has ${requested} together. The most on one node is ${most}.`;
}

function Fragments(props: { capacities: NodeCapacity[] }) {
  const groups = byFree(props.capacities);
  const most = Math.max(1, ...groups.map(([, nodes]) => nodes));
  if (!groups.length) return <Empty title="No free GPUs" />;
  return (
    <ul class="bars">
      {groups.map(([free, nodes]) => (
        <li key={free}>
          <span class="num soft">{free} free</span>
          <span class="bar">
            <span class="bar-fill" style={{ width: `${(nodes / most) * 100}%` }} />
          </span>
          <span class="num right">{count(nodes)}</span>
        </li>
      ))}
    </ul>
  );
}

function Claims(props: { query: Record<string, string> }) {
  const { phase = "Pending", claims: page = "1", cluster } = props.query;
  const claims = useResource<ClaimPage>(
    "api/claims",
    { cluster, phase: phase === "all" ? undefined : phase, pageNum: Number(page), pageSize: SIZE },
    { every: 15_000, on: ["claim", "workload"], keep: true },
  );
  return (
    <Card
      title="Claims"
      flush
      aside={
        <Choice
          label="Phase"
          value={phase as Phase}
          options={PHASES}
          onChange={(value) =>
            setQuery({ phase: value === "Pending" ? undefined : value, claims: undefined })
          }
        />
      }
    >
      <Loaded of={claims} missing={UNAVAILABLE}>
        {(data) =>
          data.total ? (
            <>
              <ClaimTable page={data} />
              <Pager
                page={Number(page)}
                size={SIZE}
                total={data.total}
                onChange={(number) => setQuery({ claims: String(number) })}
              />
            </>
          ) : (
            <Empty
              title={
                phase === "all"
                  ? "No claims"
                  : phase === "Pending"
                    ? "No pending claims"
                    : `No claims in phase ${phase}`
              }
            >
              {phase === "Pending"
                ? "Every claim has its GPUs."
                : "GpuClaims of this cluster appear here."}
            </Empty>
          )
        }
      </Loaded>
    </Card>
  );
}

function ClaimTable(props: { page: ClaimPage }) {
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Claims">
      <table>
        <thead>
          <tr>
            <th>Claim</th>
            <th>Phase</th>
            <th class="right">GPUs</th>
            <th>Request</th>
            <th>Node</th>
            <th>Gang</th>
            <th>Reason</th>
          </tr>
        </thead>
        <tbody>
          {props.page.data.map((claim) => (
            <tr key={`${claim.namespace}/${claim.name}`}>
              <td class="name">
                {claim.name}
                <div class="muted small">{claim.namespace}</div>
              </td>
              <td>
                <Badge word={claim.phase || "Pending"} />
              </td>
              <td class="right">{count(claim.count)}</td>
              <td class="soft">
                {[claim.policy, claim.exclusivity === "Exclusive" ? "" : claim.exclusivity]
                  .filter(Boolean)
                  .join(", ")}
              </td>
              <td class="words">
                {claim.nodeName ? (
                  <a href={link(["nodes", claim.nodeName])}>{claim.nodeName}</a>
                ) : (
                  NONE
                )}
                {claim.gpuIds.length > 0 && (
                  <span class="muted num"> GPU {claim.gpuIds.join(", ")}</span>
                )}
                {claim.allocations.length > 1 && (
                  <div class="muted small">and {claim.allocations.length - 1} more pods</div>
                )}
              </td>
              <td class="soft">{claim.gang || NONE}</td>
              <td class="words">
                {claim.message && <div class="muted small">{claim.message}</div>}
                <Explain claim={claim} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Leases(props: { query: Record<string, string> }) {
  const { leases: page = "1", cluster } = props.query;
  const leases = useResource<LeasePage>(
    "api/leases",
    { cluster, pageNum: Number(page), pageSize: SIZE },
    { every: 20_000, on: ["claim"], keep: true },
  );
  return (
    <Card title="Leases" note="one per allocated GPU" flush>
      <Loaded of={leases} missing={UNAVAILABLE}>
        {(data) =>
          data.total ? (
            <>
              <LeaseTable page={data} />
              <Pager
                page={Number(page)}
                size={SIZE}
                total={data.total}
                onChange={(number) => setQuery({ leases: String(number) })}
              />
            </>
          ) : (
            <Empty title="No leases">No GPU is allocated through claims.</Empty>
          )
        }
      </Loaded>
    </Card>
  );
}

function LeaseTable(props: { page: LeasePage }) {
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Leases">
      <table>
        <thead>
          <tr>
            <th>Node</th>
            <th class="right">GPU</th>
            <th>Held by</th>
            <th>Claim</th>
            <th>Since</th>
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
                    {holder.podName || holder.podUid}{" "}
                    <span class="muted small">{holder.namespace}</span>
                    {holder.share != null && holder.share < 1 && (
                      <span class="muted"> {percent(holder.share)}</span>
                    )}
                  </div>
                ))}
              </td>
              <td class="soft">
                {[...new Set(lease.holders.map((holder) => holder.claim))].join(", ")}
              </td>
              <td>{lease.acquiredAt ? <Ago at={Date.parse(lease.acquiredAt)} /> : NONE}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
