// Scheduling page: what would fit, pending claims with reasons, gangs, leases, free capacity.
import type { GpuMap } from "../../api/types";
import { t } from "../../i18n/text";
import { useResource } from "../../state/resource";
import { setQuery } from "../../state/route";
import { Card, Empty, Loaded, PageHead } from "../../ui/components";
import { count } from "../../ui/format";
import { byFree } from "../capacity";
import { Explanation } from "../claim";
import { Gangs } from "../gangs";
import { Claims } from "./claims";
import { FitForm } from "./fit";
import { Leases } from "./leases";

export function SchedulingPage(props: { query: Record<string, string> }) {
  const { cluster, claim } = props.query;
  const map = useResource<GpuMap>(
    "api/v1/gpu/map",
    { cluster },
    { every: 15_000, on: ["gpu", "node"] },
  );
  const [namespace = "", name = ""] = (claim ?? "").split("/");
  return (
    <>
      <PageHead
        title={t("Scheduling")}
        sub={t("What would fit, pending claims, gangs, leases and free GPUs")}
      />
      <div class="grid wide-left">
        <Card title={t("Would it fit now?")}>
          <FitForm query={props.query} />
        </Card>
        <Card title={t("Free GPUs by node")} note={t("of all sources")}>
          <Loaded of={map}>{(data) => <Fragments map={data} />}</Loaded>
        </Card>
      </div>
      {claim && (
        <div class="grid">
          <Card
            title={t("Why is {name} waiting?", { name })}
            note={namespace}
            aside={
              <button class="button" onClick={() => setQuery({ claim: undefined })}>
                {t("Close")}
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

function Fragments(props: { map: GpuMap }) {
  const groups = byFree(props.map);
  const most = Math.max(1, ...groups.map(([, nodes]) => nodes));
  if (!groups.length) return <Empty title={t("No free GPUs")} />;
  return (
    <ul class="bars">
      {groups.map(([free, nodes]) => (
        <li key={free}>
          <span class="num soft">{t("{n} free", { n: free })}</span>
          <span class="bar">
            <span class="bar-fill" style={{ width: `${(nodes / most) * 100}%` }} />
          </span>
          <span class="num right">{count(nodes)}</span>
        </li>
      ))}
    </ul>
  );
}
