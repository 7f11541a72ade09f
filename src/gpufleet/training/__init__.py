"""Numbers that training jobs report: metric names, log lines, TFLOPS and model FLOPs utilization."""
