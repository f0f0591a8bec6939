/* libcuda.so.1: what the environment says, the log, and the count of calls. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stub.h"

struct settings stub_settings;

static FILE *log_file;
static unsigned long log_lines;
static struct hit *hits;

static uint64_t number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

static int is(const char *name, const char *value)
{
    const char *text = getenv(name);
    return text && !strcmp(text, value);
}

/* At the start, and once more in a forked child that wants another device. */
void stub_read_environment(void)
{
    struct settings *s = &stub_settings;
    const char *text;

    s->devices = (int)number("STUBCUDA_DEVICES", 1);
    if (s->devices > MAX_DEVICES)
        s->devices = MAX_DEVICES;
    s->total = number("STUBCUDA_TOTAL_MIB", 24576) << 20;
    s->context = number("STUBCUDA_CONTEXT_MIB", 0) << 20;
    s->placement = is("STUBCUDA_POLICY", "bump") ? BUMP : is("STUBCUDA_POLICY", "down") ? DOWN : FIRST_FIT;
    s->manual_events = is("STUBCUDA_EVENTS", "manual");
    s->backed = (int)number("STUBCUDA_BACKED", 0);
    s->major = 8;
    s->minor = 0;
    text = getenv("STUBCUDA_CC");
    if (text && *text)
        sscanf(text, "%d.%d", &s->major, &s->minor);
    text = getenv("STUBCUDA_LOG");
    if (text && *text && !log_file)
        log_file = fopen(text, "a");
    stub_memory_start();
}

void stub_log(const char *format, ...)
{
    va_list arguments;

    if (!log_file)
        return;
    fprintf(log_file, "%lu ", log_lines++);
    va_start(arguments, format);
    vfprintf(log_file, format, arguments);
    va_end(arguments);
    fputc('\n', log_file);
    fflush(log_file);
}

/* Several threads may come here at once: each pushes its own entry point on the list. */
void stub_first_hit(struct hit *hit)
{
    struct hit *first = __atomic_load_n(&hits, __ATOMIC_RELAXED);
    do
        hit->next = first;
    while (!__atomic_compare_exchange_n(&hits, &first, hit, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
}

static void write_counts(void)
{
    const char *path = getenv("STUBCUDA_COUNTS");
    FILE *file = path && *path ? fopen(path, "a") : NULL;

    if (!file)
        return;
    for (struct hit *hit = hits; hit; hit = hit->next)
        fprintf(file, "%s %lu\n", hit->name, hit->count);
    fclose(file);
}

__attribute__((constructor)) static void start(void)
{
    stub_read_environment();
    atexit(write_counts);
}
