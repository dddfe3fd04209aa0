"""A small timeline with everything a report draws."""

from __future__ import annotations

from trainyard.engine import TaskGraphBuilder, Timeline, simulate


def small_timeline(num_devices: int = 2, num_microbatches: int = 3, label: str = "F") -> Timeline:
    """Forwards in a pipeline with sends between the devices; a copy that belongs to no device at the end."""
    builder = TaskGraphBuilder()
    devices = [builder.add_device(f"gpu {d}", base_bytes=2**20) for d in range(num_devices)]
    compute = [builder.add_resource("compute", d) for d in devices]
    network = [builder.add_resource("network", d, "communication") for d in devices]
    wire = builder.add_link("wire", 1e6)
    host = builder.add_resource("host", kind="other")
    last = 0
    for microbatch in range(num_microbatches):
        predecessors: list[int] = []
        for device in devices:
            last = builder.add_task(
                0.002,
                resources=compute[device],
                predecessors=predecessors,
                label=f"{label}{microbatch}",
                category="forward",
                memory=[(device, 2**21, -(2**20))],
            )
            send = builder.add_task(
                num_bytes=500, links=[wire], resources=network[device], predecessors=[last], category="send"
            )
            predecessors = [send]
    builder.add_task(0.001, resources=host, predecessors=[last], category="other")
    return simulate(builder.build())
