// Who waits for GPUs and why, who holds leases, and what room there is.
import { useMemo } from "preact/hooks";
import { rowsOf, type ClaimRow, type LeaseRow } from "../api/scheduling";
import type { GpuMap } from "../api/types";
import { useResource } from "../state/resource";
import { link, setQuery } from "../state/route";
import { NONE, count, shortModel } from "../ui/format";
import { Badge, Card, Choice, Empty, PageHead, Select, Shown } from "../ui/parts";
import { Explained } from "./claim";
import { byFree, fitting, roomOf, type NodeRoom, type Together } from "./room";

const NOT_THERE = "No scheduler of gpufleet is connected to this server";
const TOGETHER = [
  ["any", "Any GPUs"],
  ["contiguous", "Contiguous"],
  ["island", "One island"],
] as const;
const PHASES = ["Pending", "Reserved", "Bound", "Failed"];

export function SchedulingPage(props: { query: Record<string, string> }) {
  const { cluster, claim } = props.query;
  const map = useResource<GpuMap>("api/v1/gpu/map", { cluster }, { every: 15_000, on: ["gpu", "node"] });
  const rooms = useMemo(() => (map.data ? roomOf(map.data) : []), [map.data]);
  const [namespace = "", name = ""] = (claim ?? "").split("/");
  return (
    <>
      <PageHead title="Scheduling" sub="Who waits for GPUs and why, and what room there is" />
      <div class="grid wide-left">
        <Card title="Would it fit now?">
          <Shown of={map}>{() => <WhatIf rooms={rooms} query={props.query} />}</Shown>
        </Card>
        <Card title="Free GPUs by node" note="fragmentation">
          <Shown of={map}>{() => <Fragments rooms={rooms} />}</Shown>
        </Card>
      </div>
      {claim && (
        <div class="grid">
          <Card title={`Why ${name}?`} note={namespace} aside={<button class="button" onClick={() => setQuery({ claim: undefined })}>Close</button>}>
            <Explained namespace={namespace} name={name} cluster={cluster} />
          </Card>
        </div>
      )}
      <div class="grid">
        <Claims query={props.query} />
      </div>
      <div class="grid">
        <Leases cluster={cluster} />
      </div>
    </>
  );
}

function WhatIf(props: { rooms: NodeRoom[]; query: Record<string, string> }) {
  const asked = Math.min(64, Math.max(1, Number(props.query["count"] ?? "4") || 1));
  const together = (props.query["together"] ?? "contiguous") as Together;
  const model = props.query["model"] ?? "";
  const models = useMemo(() => [...new Set(props.rooms.map((room) => room.model))].filter(Boolean).sort(), [props.rooms]);
  const fits = useMemo(() => fitting(props.rooms, asked, together, model), [props.rooms, asked, together, model]);
  return (
    <>
      <div class="form">
        <label class="named">
          GPUs
          <input
            class="field"
            type="number"
            min={1}
            max={64}
            value={asked}
            onInput={(event) => setQuery({ count: event.currentTarget.value })}
          />
        </label>
        <Select label="Model" value={model} any="Any model" options={models} onChange={(value) => setQuery({ model: value || undefined })} />
        <Choice label="Together" value={together} options={TOGETHER} onChange={(value) => setQuery({ together: value })} />
      </div>
      <div class="verdict" role="status">
        {fits.length ? (
          <>
            <p>
              <Badge word="Yes" tone="good" />{" "}
              <strong class="num">
                {count(fits.length)} {fits.length === 1 ? "node" : "nodes"}
              </strong>{" "}
              could take {asked} {model ? shortModel(model) : "GPUs"} now.
            </p>
            <p class="muted small nodes-line">
              {fits.slice(0, 8).map((room) => (
                <a class="chip" key={room.node} href={link(["nodes", room.node])}>
                  {room.node} · {room.free} free
                </a>
              ))}
              {fits.length > 8 && <span>and {count(fits.length - 8)} more</span>}
            </p>
          </>
        ) : (
          <p>
            <Badge word="No" tone="warn" /> {refusal(props.rooms, asked, model)}
          </p>
        )}
      </div>
      <p class="muted small form-note">Looks at free, healthy GPUs on nodes that take pods; not at taints, CPU or memory.</p>
    </>
  );
}

function refusal(rooms: NodeRoom[], asked: number, model: string): string {
  const fit = rooms.filter((room) => !model || room.model === model);
  const free = fit.reduce((sum, room) => sum + room.free, 0);
  const most = Math.max(0, ...fit.map((room) => room.free));
  return free < asked
    ? `${free} ${free === 1 ? "is" : "are"} free in all, ${asked} asked for.`
    : `${count(free)} are free in all, but no node has ${asked} together; the most on one node is ${most}.`;
}

function Fragments(props: { rooms: NodeRoom[] }) {
  const groups = byFree(props.rooms);
  const most = Math.max(1, ...groups.map(([, nodes]) => nodes));
  if (!groups.length) return <Empty title="No GPU is free" />;
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
  const phase = props.query["phase"] ?? "";
  const claims = useResource<ClaimRow[] | { data: ClaimRow[] }>(
    "api/claims",
    { cluster: props.query["cluster"] },
    { every: 15_000, on: ["claim", "workload"] },
  );
  return (
    <Card
      title="Claims"
      flush
      aside={<Select label="Phase" value={phase} any="Every phase" options={PHASES} onChange={(value) => setQuery({ phase: value || undefined })} />}
    >
      <Shown of={claims} missing={NOT_THERE}>
        {(data) => {
          const rows = rowsOf(data).filter((claim) => !phase || claim.phase === phase);
          if (!rows.length) return <Empty title="No claims">Pods that name a GpuClaim appear here.</Empty>;
          return (
            <div class="scroll" tabIndex={0} role="region" aria-label="Claims">
              <table>
                <thead>
                  <tr>
                    <th>Claim</th>
                    <th>Phase</th>
                    <th class="right">GPUs</th>
                    <th>Policy</th>
                    <th>Where</th>
                    <th>Gang</th>
                    <th>Message</th>
                  </tr>
                </thead>
                <tbody>
                  {rows.slice(0, 200).map((claim) => (
                    <tr key={`${claim.namespace}/${claim.name}`}>
                      <td class="name">
                        <button class="linkish" onClick={() => setQuery({ claim: `${claim.namespace}/${claim.name}` }, true)}>
                          {claim.name}
                        </button>
                        <div class="muted small">{claim.namespace}</div>
                      </td>
                      <td>
                        <Badge word={claim.phase} />
                      </td>
                      <td class="right">{count(claim.count)}</td>
                      <td class="soft">{[claim.policy, claim.exclusivity].filter(Boolean).join(", ")}</td>
                      <td>
                        {claim.nodeName ? <a href={link(["nodes", claim.nodeName])}>{claim.nodeName}</a> : NONE}
                        {claim.gpus?.length ? <span class="muted"> {claim.gpus.join(", ")}</span> : null}
                      </td>
                      <td class="soft">{claim.gang || NONE}</td>
                      <td class="muted words">{claim.message}</td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </div>
          );
        }}
      </Shown>
    </Card>
  );
}

function Leases(props: { cluster: string | undefined }) {
  const leases = useResource<LeaseRow[] | { data: LeaseRow[] }>("api/leases", { cluster: props.cluster }, { every: 20_000, on: ["claim"] });
  return (
    <Card title="Leases" note="one for each GPU that is booked" flush>
      <Shown of={leases} missing={NOT_THERE}>
        {(data) => {
          const rows = rowsOf(data);
          if (!rows.length) return <Empty title="No leases">Nothing is booked.</Empty>;
          return (
            <div class="scroll" tabIndex={0} role="region" aria-label="Leases">
              <table>
                <thead>
                  <tr>
                    <th>Node</th>
                    <th class="right">GPU</th>
                    <th>Held by</th>
                    <th>Lease</th>
                  </tr>
                </thead>
                <tbody>
                  {rows.slice(0, 200).map((lease) => (
                    <tr key={lease.name}>
                      <td class="name">
                        <a href={link(["nodes", lease.nodeName], { gpu: String(lease.gpu) })}>{lease.nodeName}</a>
                      </td>
                      <td class="right">{lease.gpu}</td>
                      <td class="soft">{lease.holders.join(", ")}</td>
                      <td class="muted">{lease.name}</td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </div>
          );
        }}
      </Shown>
    </Card>
  );
}
