"""What every process needs: settings, logs, signals, listening and background tasks."""
