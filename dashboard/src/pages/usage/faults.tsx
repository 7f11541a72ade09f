// What the faults of the period cost, as far as the server knows it.
import type { Report, ReportFaultCosts } from "../../api/types";
import { t } from "../../i18n/text";
import { count, decimal } from "../../ui/format";
import { FaultStats, LostHours } from "../fault_costs";

export function ReportFaults(props: { faults: ReportFaultCosts; totals: Report["totals"] }) {
  const { faults, totals } = props;
  if (!faults.faults && !faults.lost_gpu_hours) return null;
  return (
    <>
      <h2 class="section-title">{t("Faults")}</h2>
      <FaultStats
        lost={decimal(faults.lost_gpu_hours, 2)}
        lostNote={t("{share} of capacity", {
          share: `${decimal((100 * faults.lost_gpu_hours) / (totals.capacity_gpu_hours || 1), 2)}%`,
        })}
        faults={faults.faults}
        faultsNote={t("{n} open", { n: count(faults.open_faults) })}
        hoursBetween={faults.mean_hours_between_failures}
        hoursToRepair={faults.mean_hours_to_repair}
      />
      <LostHours
        byCause={faults.by_cause}
        byNode={faults.by_node}
        byModel={faults.by_model}
        total={faults.lost_gpu_hours}
        note={t("lost GPU hours")}
      />
    </>
  );
}
