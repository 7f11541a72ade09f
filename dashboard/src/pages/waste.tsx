// Workloads with idle allocated GPUs, most wasteful first.
import { addressOf } from "../api/client";
import type { WastePage } from "../api/types";
import { t } from "../i18n/text";
import { useResource } from "../state/resource";
import { link, pageOf, setQuery } from "../state/route";
import { useSession } from "../state/session";
import { decimal, percent, withUnit } from "../ui/format";
import { Card, Empty, Pager, Loaded } from "../ui/components";
import { spanOf, zoneName, type Days } from "./period";
import { Table } from "../ui/table";

const SIZE = 10;
const WASTE = "api/v1/gpu-aggregation/waste";

export function Waste(props: {
  days: Days;
  query: Record<string, string>;
  priced: boolean;
  currency: string | undefined;
}) {
  const page = pageOf(props.query["waste"]);
  const { zone } = useSession();
  const params = {
    cluster: props.query["cluster"],
    zone: zoneName(zone),
    ...spanOf(props.days, zone),
  };
  const found = useResource<WastePage>(
    WASTE,
    { ...params, page, page_size: SIZE },
    { every: 300_000, keep: true },
  );
  return (
    <div class="grid">
      <Card
        title={t("Idle while allocated")}
        note={t("allocated GPU hours with a utilization below 5%, most idle first")}
        flush
        csv={addressOf(WASTE, { ...params, page_size: 1000 })}
      >
        <Loaded of={found}>
          {(data) =>
            data.total ? (
              <>
                <WasteTable page={data} priced={props.priced} currency={props.currency} />
                <Pager
                  page={page}
                  size={SIZE}
                  total={data.total}
                  onChange={(number) =>
                    setQuery({ waste: number > 1 ? String(number) : undefined })
                  }
                />
              </>
            ) : (
              <Empty title={t("No idle allocations")} />
            )
          }
        </Loaded>
      </Card>
    </div>
  );
}

function WasteTable(props: { page: WastePage; priced: boolean; currency: string | undefined }) {
  const metered = props.page.data.some((row) => row.energy_kwh !== null);
  return (
    <Table label={t("Idle while allocated")}>
      <thead>
        <tr>
          <th>{t("Workload")}</th>
          <th>{t("Namespace")}</th>
          <th>{t("Kind")}</th>
          <th class="right">{t("Idle GPU hours")}</th>
          <th class="right">{t("Idle share of allocated")}</th>
          <th class="right">{t("Utilization")}</th>
          {metered && <th class="right">{t("Energy (kWh)")}</th>}
          {props.priced && <th class="right">{withUnit(t("Idle cost"), props.currency)}</th>}
        </tr>
      </thead>
      <tbody>
        {props.page.data.map((row) => (
          <tr key={`${row.namespace} ${row.workload_type} ${row.workload_name} ${row.owner_uid}`}>
            <td class="name">
              {row.owner_uid ? (
                <a href={link(["workloads", row.owner_uid])}>{row.workload_name}</a>
              ) : (
                row.workload_name
              )}
            </td>
            <td class="soft">{row.namespace}</td>
            <td class="soft">{row.workload_type}</td>
            <td class="right">{decimal(row.idle_gpu_hours, 2)}</td>
            <td class="right soft">{percent(row.idle_share / 100, 1)}</td>
            <td class="right">
              {percent(row.avg_utilization === null ? null : row.avg_utilization / 100, 1)}
            </td>
            {metered && <td class="right">{decimal(row.energy_kwh, 2)}</td>}
            {props.priced && <td class="right">{decimal(row.idle_cost, 2)}</td>}
          </tr>
        ))}
      </tbody>
    </Table>
  );
}
