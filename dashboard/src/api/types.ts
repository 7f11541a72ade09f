// API types, generated from /openapi.json.
import type { components } from "./schema";

type Schemas = components["schemas"];

export type ClusterOverview = Schemas["ClusterOverview"];
export type ClusterNames = Schemas["ClusterName"][];
export type Consumer = Schemas["Consumer"];
export type ConsumerPage = Schemas["ConsumerPage"];
export type Heatmaps = Schemas["Heatmaps"];
export type GpuMap = Schemas["GpuMap"];
export type NodePage = Schemas["NodePage"];
export type NodeRow = Schemas["NodeRow"];
export type NodeDetail = Schemas["NodeDetail"];
export type NodeGpu = Schemas["NodeGpu"];
export type Occupancy = Schemas["Occupancy"];
export type OccupancyPeriod = Schemas["OccupancyPeriod"];
export type FleetOccupancy = Schemas["FleetOccupancy"];
export type OccupyingWorkload = Schemas["OccupyingWorkload"];
export type Manifest = Schemas["Manifest"];
export type WorkloadEvent = Schemas["WorkloadEvent"];
export type Log = Schemas["Log"];
export type WorkloadPage = Schemas["WorkloadPage"];
export type WorkloadRow = Schemas["WorkloadRow"];
export type WorkloadDetail = Schemas["WorkloadDetail"];
export type WorkloadMetadata = Schemas["WorkloadMetadata"];
export type HierarchyItem = Schemas["HierarchyItem"];
export type Graph = Schemas["Graph"];
export type TrainingRow = Schemas["TrainingRow"];
export type ClaimPage = Schemas["ClaimPage"];
export type LeasePage = Schemas["LeasePage"];
export type WhyWaiting = Schemas["WhyWaiting"];
export type StartEstimate = Schemas["StartEstimate"];
export type QueuePage = Schemas["QueuePage"];
export type QueueList = Schemas["QueueList"];
export type Forecast = Schemas["Forecast"];
export type FitAnswer = Schemas["FitAnswer"];
export type FindingPage = Schemas["FindingPage"];
export type RepairPage = Schemas["RepairPage"];
export type FaultCosts = Schemas["Costs"];
export type Health = Schemas["Health"];
export type Me = Schemas["Me"];
/** Rates of the accounting API are 0–100. */
export type ClusterHour = Schemas["ClusterStatistics"];
export type Report = Schemas["Report"];
export type ReportFaultCosts = Schemas["FaultCosts"];
export type ReportRow = Schemas["ReportRow"];
export type ReportSeries = Schemas["ReportSeries"];
export type WastePage = Schemas["Page_WasteRow_"];
export type WasteRow = Schemas["WasteRow"];

/** One event of /api/events. */
export interface Change {
  at: number;
  subject: "workload" | "node" | "gpu" | "claim";
  name: string;
  title: string;
  was: string;
  now: string;
  reason: string;
}
