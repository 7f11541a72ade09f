"""What every process needs: settings, logs, listening, background tasks."""
