"""What sites run: Slurm, mount(8), systemd, packages. `make test-site` gives them namespaces of their own."""
