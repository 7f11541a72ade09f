// Links to the objects of scheduling.
import { link } from "../../state/route";

export function ClaimLink(props: { namespace: string; name: string }) {
  const claim = `${props.namespace}/${props.name}`;
  return <a href={link(["scheduling"], { claim })}>{props.name}</a>;
}

/** The workload of a pod, which is found by the uid of the pod. */
export function PodLink(props: { uid: string; name: string }) {
  return props.uid ? <a href={link(["workloads", props.uid])}>{props.name}</a> : <>{props.name}</>;
}

/** The claims of a gang. */
export function GangLink(props: { namespace: string; name: string }) {
  const { namespace, name: gang } = props;
  return <a href={link(["scheduling"], { gang, namespace })}>{gang}</a>;
}
