// Explain why a claim waits and what would make it fit.
import type { WhyWaiting, WorkloadDetail } from "../api/types";
import { plural, t } from "../i18n/text";
import { useResource } from "../state/resource";
import { link, setQuery } from "../state/route";
import { Badge, Card, Loaded } from "../ui/components";
import { Estimate } from "../ui/estimate";

/** Explain a claim that the pods of a workload name. */
export function ClaimOf(props: {
  title: string;
  workload: WorkloadDetail;
  claim: string;
  cluster: string | undefined;
}) {
  const { claim, workload } = props;
  const { claims = [], namespace } = workload;
  return (
    <div class="grid">
      <Card
        title={props.title}
        note={
          <>
            <a href={link(["scheduling"], { claim: `${namespace}/${claim}` })}>{claim}</a>
            {claims.length > 1 && ` ${t("and {more} more", { more: claims.length - 1 })}`}
          </>
        }
      >
        <Explanation namespace={namespace} name={claim} cluster={props.cluster} />
      </Card>
    </div>
  );
}

/** Open the explanation of a claim on the scheduling page. */
export function Explain(props: { claim: { namespace: string; name: string } }) {
  const { namespace, name } = props.claim;
  return (
    <button
      class="linkish small accent"
      onClick={() => setQuery({ claim: `${namespace}/${name}` }, true)}
    >
      {t("Explain")}
    </button>
  );
}

export function Explanation(props: {
  namespace: string;
  name: string;
  cluster: string | undefined;
}) {
  const explanation = useResource<WhyWaiting>(
    `api/claims/${encodeURIComponent(props.namespace)}/${encodeURIComponent(props.name)}/explain`,
    { cluster: props.cluster },
    { every: 15_000, on: ["claim", "node", "gpu"] },
  );
  return (
    <Loaded of={explanation}>
      {(explained) => (
        <div>
          <p class="soft">
            {explained.waiting && <Badge word="Pending" />} {explained.sentence}
          </p>
          {explained.estimate && <Estimate estimate={explained.estimate} />}
          {explained.waiting && !explained.estimate && (
            <p class="muted">{t("Its start is not estimated yet.")}</p>
          )}
          {Object.keys(explained.reasons).length > 0 && (
            <div class="reasons">
              {Object.entries(explained.reasons)
                .sort(([, a], [, b]) => b - a)
                .map(([reason, nodes]) => (
                  <div class="reason" key={reason}>
                    <span>{reason}</span>
                    <span class="num muted">{plural(nodes, "{n} node", "{n} nodes")}</span>
                  </div>
                ))}
            </div>
          )}
          {explained.waiting && !explained.remedies.length && (
            <p class="muted">{t("No change of its request would make it fit now.")}</p>
          )}
          {explained.remedies.length > 0 && (
            <div class="verdict">
              <h3>{t("Ways to make it fit")}</h3>
              <ul class="bullets">
                {explained.remedies.map((remedy) => (
                  <li key={remedy}>{remedy}</li>
                ))}
              </ul>
            </div>
          )}
        </div>
      )}
    </Loaded>
  );
}
