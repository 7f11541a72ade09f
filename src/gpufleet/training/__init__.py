"""What training jobs tell of themselves: names, log lines, TFLOPS and model FLOPs utilization."""
