/* server/pool: see pool.h. */
#include "server/pool.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/mem.h"

typedef struct {
    pool_job *first, **last;
} job_list;

struct pool {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    job_list waiting, finished; /* under lock */
    int n_heavy;                /* of those that run; under lock */
    int max_heavy;
    bool stopping; /* under lock */
    int fd;
    int n_threads;
    pthread_t threads[];
};

static void list_push(job_list *l, pool_job *job) {
    job->next = NULL;
    *l->last = job;
    l->last = &job->next;
}

static pool_job *list_pop(job_list *l) {
    pool_job *job = l->first;
    l->first = job->next;
    if (l->first == NULL) l->last = &l->first;
    return job;
}

/* The first job that may begin now, or NULL. */
static pool_job *take_next(pool *p) {
    for (pool_job **at = &p->waiting.first; *at != NULL; at = &(*at)->next) {
        pool_job *job = *at;
        if (job->heavy && p->n_heavy >= p->max_heavy) continue;
        *at = job->next;
        if (*at == NULL) p->waiting.last = at;
        p->n_heavy += job->heavy;
        return job;
    }
    return NULL;
}

static void announce(pool *p) {
    ssize_t ignored = write(p->fd, &(uint64_t){1}, sizeof(uint64_t)); /* full: already readable */
    (void)ignored;
}

static void *worker(void *context) {
    pool *p = context;
    pthread_mutex_lock(&p->lock);
    while (!p->stopping) {
        pool_job *job = take_next(p);
        if (job == NULL) {
            pthread_cond_wait(&p->wake, &p->lock);
            continue;
        }
        bool heavy = job->heavy; /* the job is its owner's once it is finished */
        pthread_mutex_unlock(&p->lock);
        job->work(job);
        pthread_mutex_lock(&p->lock);
        p->n_heavy -= heavy;
        list_push(&p->finished, job);
        announce(p);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

ridge_status pool_create(pool **out, int n_threads, ridge_error *err) {
    pool *p = mem_zalloc(1, sizeof *p + (size_t)n_threads * sizeof(pthread_t));
    if (p == NULL) return RIDGE_FAIL(err, RIDGE_ENOMEM, "worker pool");
    p->waiting.last = &p->waiting.first;
    p->finished.last = &p->finished.first;
    p->max_heavy = n_threads > 1 ? n_threads - 1 : 1;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    p->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    for (; p->fd >= 0 && p->n_threads < n_threads; p->n_threads++)
        if (pthread_create(&p->threads[p->n_threads], NULL, worker, p) != 0) break;
    if (p->n_threads < n_threads) {
        pool_destroy(p);
        return RIDGE_FAIL(err, RIDGE_EIO, "cannot start %d worker threads", n_threads);
    }
    *out = p;
    return RIDGE_OK;
}

void pool_destroy(pool *p) {
    if (p == NULL) return;
    pthread_mutex_lock(&p->lock);
    p->stopping = true;
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->n_threads; i++) pthread_join(p->threads[i], NULL);
    while (p->waiting.first != NULL) list_push(&p->finished, list_pop(&p->waiting));
    pool_take(p);
    if (p->fd >= 0) close(p->fd);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    mem_free(p);
}

int pool_fd(const pool *p) {
    return p->fd;
}

void pool_submit(pool *p, pool_job *job) {
    pthread_mutex_lock(&p->lock);
    list_push(&p->waiting, job);
    pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

void pool_take(pool *p) {
    uint64_t count;
    ssize_t ignored = p->fd >= 0 ? read(p->fd, &count, sizeof count) : 0;
    (void)ignored;
    pthread_mutex_lock(&p->lock);
    pool_job *job = p->finished.first;
    p->finished = (job_list){NULL, &p->finished.first};
    pthread_mutex_unlock(&p->lock);
    while (job != NULL) {
        pool_job *next = job->next;
        job->done(job);
        job = next;
    }
}
