"""The homes of files in a cluster, agreed between supervisors."""
