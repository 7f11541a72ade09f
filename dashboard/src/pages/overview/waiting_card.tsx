// The workloads that wait for GPUs, with the reason and the expected start; nothing if none wait.
import { plural, t } from "../../i18n/text";
import { link } from "../../state/route";
import { useMe, usePending, useQueue } from "../../state/waiting";
import { NONE } from "../../ui/format";
import { Card, useNow } from "../../ui/components";
import { startText } from "../../ui/estimate";
import { reasonOf } from "../request";
import { waitingOf, type Waiting } from "../waiting";

const SHOWN = 3;

export function WaitingCard(props: { cluster: string | undefined }) {
  const pending = usePending(props.cluster).data;
  const units = useQueue(props.cluster).data?.data ?? [];
  const me = useMe();
  if (!pending?.total) return null;
  return (
    <div class="grid">
      <Card
        title={t("Waiting for GPUs")}
        note={plural(pending.total, "{n} workload", "{n} workloads")}
        flush
        aside={
          <a class="small muted" href={link(["queue"])}>
            {t("Queue")}
          </a>
        }
      >
        <ul class="list">
          {waitingOf(pending.data, units, me)
            .slice(0, SHOWN)
            .map((waiting) => (
              <Row key={waiting.workload.uid} {...waiting} />
            ))}
          {pending.total > SHOWN && (
            <li class="small list-foot">
              <a class="muted" href={link(["workloads"], { status: "Pending" })}>
                {t("and {more} more", { more: pending.total - SHOWN })}
              </a>
            </li>
          )}
        </ul>
      </Card>
    </div>
  );
}

function Row(props: Waiting) {
  const { workload, estimate } = props;
  const now = useNow(30_000);
  const about = [workload.namespace, workload.user].filter(Boolean).join(" · ");
  return (
    <li class="with-reason">
      <a class="grow line" href={link(["workloads", workload.uid])}>
        {workload.name} <span class="muted small">{about}</span>
      </a>
      <span class="num small soft">{plural(workload.gpuRequested, "{n} GPU", "{n} GPUs")}</span>
      <span class="num cost">{startText(props, now)}</span>
      <span class="reason-line muted small" title={reasonOf(workload)}>
        {estimate?.waitsFor || reasonOf(workload) || NONE}
      </span>
    </li>
  );
}
