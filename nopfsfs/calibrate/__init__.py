"""Measuring what a source, disks and memory deliver. Each part is measured in a process of its own (`meter_process`),
which may sleep in the kernel for ever. `meter_client` starts that process, waits for a limited time, and goes on
without it."""
