// The GPUs that teams held over time: rows are workloads below their team, bars are as high as the number of GPUs.
import type { FleetOccupancy, OccupyingWorkload, WorkloadMetadata } from "../api/types";
import { teamColours } from "../charts/colours";
import { ShareAxis, useDrag, whenText } from "../charts/gantt";
import { plural, t } from "../i18n/text";
import { useResource } from "../state/resource";
import { rangeName, useRange, zoomTo, type Range } from "../state/range";
import { link } from "../state/route";
import { useSession } from "../state/session";
import { Card, Empty, Loaded } from "../ui/components";
import { ClearFilters, FilterFields } from "../ui/filters";
import { decimal, list, span } from "../ui/format";
import { RangeChoice } from "../ui/range";

const FEW = 8;
const MANY = 60;

export function TeamTimeline(props: {
  query: Record<string, string>;
  meta: WorkloadMetadata | undefined;
}) {
  const { query } = props;
  const team = query["team"] ?? "";
  const range = useRange(query["span"] || query["from"] ? query : { ...query, span: "24h" });
  const occupancy = useResource<FleetOccupancy>(
    "api/occupancy",
    {
      cluster: query["cluster"],
      start: range.start,
      end: range.end,
      team,
      workloads: team ? MANY : FEW,
    },
    { every: 60_000, same: `teams ${team} ${rangeName(query)}` },
  );
  return (
    <>
      <div class="filters">
        <FilterFields
          query={query}
          fields={[
            {
              name: "team",
              label: t("Team"),
              any: t("All teams"),
              options: props.meta?.teams ?? [],
            },
          ]}
        />
        <ClearFilters query={query} names={["team"]} />
      </div>
      <Card
        title={t("GPUs held")}
        note={t("by team and workload")}
        aside={<RangeChoice query={{ span: "24h", ...query }} range={range} />}
      >
        <Loaded of={occupancy} missing={t("This server has no history of allocations")} lines={8}>
          {(data) =>
            data.teams.length ? (
              <Teams occupancy={data} range={range} />
            ) : (
              <Empty icon="clock" title={t("No GPU was held in this time range")} />
            )
          }
        </Loaded>
      </Card>
    </>
  );
}

function Teams(props: { occupancy: FleetOccupancy; range: Range }) {
  const { start, end } = props.range;
  const { teams, truncated } = props.occupancy;
  const colours = teamColours(teams.map((each) => each.team));
  const drag = useDrag((from, to) =>
    zoomTo(start + from * (end - start), start + to * (end - start)),
  );
  return (
    <figure class="gantt wide" aria-label={t("GPUs of each team over time")}>
      <div class="gantt-rows" {...drag.handlers}>
        {teams.map((each) => (
          <section key={each.team}>
            <h3 class="gantt-team">
              <span class="swatch" style={{ background: colours.get(each.team) ?? "" }} />
              {each.team || t("no team")}{" "}
              <span class="muted small num">
                {t("{hours} GPU hours", { hours: decimal(each.gpuHours) })}
              </span>
            </h3>
            {each.workloads.map((workload) => (
              <Row
                key={workload.uid}
                workload={workload}
                range={props.range}
                colour={colours.get(each.team) ?? ""}
              />
            ))}
            {each.more > 0 && (
              <p class="muted small gantt-more">
                <a href={moreHref(each.team)}>{t("and {more} more", { more: each.more })}</a>
              </p>
            )}
          </section>
        ))}
        {drag.selection && (
          <div class="gantt-selection">
            <span
              style={{
                left: `${drag.selection[0] * 100}%`,
                width: `${(drag.selection[1] - drag.selection[0]) * 100}%`,
              }}
            />
          </div>
        )}
      </div>
      <ShareAxis start={start} end={end} />
      {truncated && (
        <p class="muted small">
          {t("Workloads that ended first are not shown. Choose a shorter range or a team.")}
        </p>
      )}
    </figure>
  );
}

function moreHref(team: string): string {
  return link(["workloads"], { view: "timeline", team });
}

/** Return a number of GPUs, with one digit for shares of GPUs. */
function gpuText(gpus: number): string {
  return plural(Math.round(gpus * 10) / 10, "{n} GPU", "{n} GPUs");
}

function Row(props: { workload: OccupyingWorkload; range: Range; colour: string }) {
  const { workload, range } = props;
  const { zone } = useSession();
  const now = Date.now() / 1000;
  const until = Math.min(now, range.end);
  const share = (at: number) =>
    Math.min(1, Math.max(0, (at - range.start) / (range.end - range.start)));
  const most = Math.max(...workload.parts.map((part) => part.gpus));
  const href = link(["workloads", workload.uid]);
  return (
    <div class="gantt-row">
      <a class="small gantt-name" href={href} title={`${workload.namespace}/${workload.name}`}>
        {workload.name}
      </a>
      <div class="gantt-line">
        {workload.parts.map((part) => {
          const ends = part.end || until;
          const held = {
            name: list([workload.name, workload.user].filter(Boolean)),
            gpus: gpuText(part.gpus),
            time: span(ends - part.start),
          };
          const what = part.end
            ? t("{name}, {gpus}, for {time}", held)
            : t("{name}, {gpus}, for {time} so far", held);
          const text = `${what}\n${whenText(part.start, part.end, zone)}`;
          const left = share(part.start);
          return (
            <a
              class="gantt-bar"
              key={part.start}
              href={href}
              title={text}
              aria-label={text}
              draggable={false}
              style={{
                left: `${left * 100}%`,
                width: `max(2px, ${(share(ends) - left) * 100}%)`,
                bottom: 0,
                height: `${Math.max(25, (part.gpus / most) * 100)}%`,
                background: props.colour,
              }}
            >
              {part.gpus === most ? gpuText(part.gpus) : ""}
            </a>
          );
        })}
      </div>
    </div>
  );
}
