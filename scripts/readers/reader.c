/* Opens, reads wholly and closes each file of a list: the cheapest reader there can be, to time a file system.
 *
 *     reader LIST [REPEATS [wait]]
 *
 * LIST holds one path per line. Prints a JSON line per repeat: {"files": N, "bytes": N, "seconds": S}. With `wait` it
 * prints "ready" first and waits for a line of its input before each repeat, so that several can begin together.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char buffer[1 << 20]; /* reused for all files, as a loader with a pinned buffer would */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void die(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static long long read_file(const char *path)
{
    long long total = 0;
    ssize_t count;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        die(path);
    while ((count = read(fd, buffer, sizeof buffer)) > 0)
        total += count;
    if (count < 0)
        die(path);
    close(fd);
    return total;
}

static void wait_for_start(void)
{
    int c;
    do
        c = getchar();
    while (c != '\n' && c != EOF);
}

static char **read_list(const char *path, size_t *count)
{
    char **paths = NULL, *line = NULL;
    size_t capacity = 0, size = 0;
    ssize_t length;
    FILE *file = fopen(path, "r");
    if (!file)
        die(path);
    *count = 0;
    while ((length = getline(&line, &size, file)) > 0) {
        if (line[length - 1] == '\n')
            line[length - 1] = 0;
        if (*count == capacity) {
            capacity = capacity ? 2 * capacity : 1024;
            paths = realloc(paths, capacity * sizeof *paths);
            if (!paths)
                die("list");
        }
        paths[*count] = strdup(line);
        if (!paths[(*count)++])
            die("list");
    }
    free(line);
    fclose(file);
    return paths;
}

int main(int argc, char **argv)
{
    size_t count;
    if (argc < 2) {
        fprintf(stderr, "usage: reader LIST [REPEATS [wait]]\n");
        return 2;
    }
    char **paths = read_list(argv[1], &count);
    int wait = argc > 3 && strcmp(argv[3], "wait") == 0;
    if (wait) {
        puts("ready");
        fflush(stdout);
    }
    for (int repeats = argc > 2 ? atoi(argv[2]) : 1; repeats > 0; repeats--) {
        long long bytes = 0;
        if (wait)
            wait_for_start();
        double start = now();
        for (size_t i = 0; i < count; i++)
            bytes += read_file(paths[i]);
        printf("{\"files\": %zu, \"bytes\": %lld, \"seconds\": %.6f}\n", count, bytes, now() - start);
        fflush(stdout);
    }
    return 0;
}
