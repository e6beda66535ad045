"""Several tasks that train one actor (docs/multi_task.md)."""
