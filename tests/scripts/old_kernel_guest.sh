# Runs in the guest of test_old_kernel.py: says what it was given, and that it may write where a guest may.
set -e
echo "<$1> <$2>"
touch /mnt/a /run/a /dev/shm/a
test -e /sys/fs/fuse/connections
exit 7
