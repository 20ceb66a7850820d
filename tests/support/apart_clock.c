/* The time of day as another machine has it: CLOCK_APART_S seconds later, or earlier. Clocks that only
 * measure how long something takes are as they were. Waits until a time of day end when this machine has
 * that time, so they are given ours. (Under libfaketime, told to leave the monotonic clock, each sleep of
 * Python fails.) */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>

static long apart(void) {
    const char *text = getenv("CLOCK_APART_S");
    return text ? atol(text) : 0;
}

/* A time of day of that machine as this one has it. */
static const struct timespec *here(const struct timespec *then, struct timespec *ours) {
    if (!then)
        return then;
    *ours = *then;
    ours->tv_sec -= apart();
    return ours;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*ask)(clockid_t, struct timespec *);
    if (!ask)
        ask = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = ask(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += apart();
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (now)
        *now = exact.tv_sec;
    return exact.tv_sec;
}

/* By version: the oldest, which RTLD_NEXT may give, knows another layout of a condition. */
int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    static int (*wait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    struct timespec ours;
    if (!wait)
        wait = (int (*)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *))dlvsym(
            RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    /* a condition on the monotonic clock gets times since the start of the machine */
    return wait(cond, mutex, until->tv_sec > 1000000000 ? here(until, &ours) : until);
}

int pthread_cond_clockwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           clockid_t clock, const struct timespec *restrict until) {
    static int (*wait)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);
    struct timespec ours;
    if (!wait)
        wait = (int (*)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *))dlsym(
            RTLD_NEXT, "pthread_cond_clockwait");
    return wait(cond, mutex, clock, clock == CLOCK_REALTIME ? here(until, &ours) : until);
}

int sem_timedwait(sem_t *restrict sem, const struct timespec *restrict until) {
    static int (*wait)(sem_t *, const struct timespec *);
    struct timespec ours;
    if (!wait)
        wait = (int (*)(sem_t *, const struct timespec *))dlsym(RTLD_NEXT, "sem_timedwait");
    return wait(sem, here(until, &ours));
}

int sem_clockwait(sem_t *restrict sem, clockid_t clock, const struct timespec *restrict until) {
    static int (*wait)(sem_t *, clockid_t, const struct timespec *);
    struct timespec ours;
    if (!wait)
        wait = (int (*)(sem_t *, clockid_t, const struct timespec *))dlsym(RTLD_NEXT, "sem_clockwait");
    return wait(sem, clock, clock == CLOCK_REALTIME ? here(until, &ours) : until);
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict until) {
    static int (*lock)(pthread_mutex_t *, const struct timespec *);
    struct timespec ours;
    if (!lock)
        lock = (int (*)(pthread_mutex_t *, const struct timespec *))dlsym(
            RTLD_NEXT, "pthread_mutex_timedlock");
    return lock(mutex, here(until, &ours));
}

/* Locks of absl, which Ray has, ask the kernel. */
long syscall(long number, ...) {
    static long (*ask)(long, ...);
    struct timespec ours;
    long a[6];
    va_list rest;
    va_start(rest, number);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(rest, long);
    va_end(rest);
    if (!ask)
        ask = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    if (number == SYS_futex && (a[1] & FUTEX_CLOCK_REALTIME))
        a[3] = (long)here((const struct timespec *)a[3], &ours);
    return ask(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
