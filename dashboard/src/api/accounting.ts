// What /api/v1/gpu-aggregation answers, as the contract has it. Rates are 0–100 here.

export interface ClusterHour {
  stat_hour: string;
  total_gpu_capacity: number;
  allocated_gpu_count: number;
  allocation_rate: number;
  avg_utilization: number | null;
}

/** The fields that every hourly row of a group has. */
export interface GroupHour {
  stat_hour: string;
  allocated_gpu_count: number;
  avg_utilization: number | null;
  namespace?: string;
  dimension_value?: string;
  workload_name?: string;
  workload_type?: string;
  owner_uid?: string;
}

export interface Paged<T> {
  total: number;
  page: number;
  page_size: number;
  total_pages: number;
  data: T[];
}
