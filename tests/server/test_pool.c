/* The pool: order, and heavy jobs that leave a worker for the others. */
#include "unit.h"

#include <pthread.h>
#include <semaphore.h>
#include <string.h>
#include <time.h>

#include "server/pool.h"

typedef struct {
    pool_job job;
    char name;
    sem_t *gate; /* waited for while working; NULL: none */
    sem_t *worked;
    char *log;
} named_job;

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;

static void job_work(pool_job *job) {
    named_job *j = (named_job *)job;
    if (j->gate != NULL) sem_wait(j->gate);
    pthread_mutex_lock(&log_lock);
    strncat(j->log, &j->name, 1);
    pthread_mutex_unlock(&log_lock);
    sem_post(j->worked);
}

static void job_done(pool_job *job) {
    (void)job;
}

static bool wait_for(sem_t *s) {
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += 10;
    return sem_timedwait(s, &deadline) == 0;
}

static void test_heavy_jobs_leave_a_worker(void **state) {
    (void)state;
    sem_t gate, worked;
    char log[16] = "";
    pool *p = NULL;
    ridge_error err = {0};
    sem_init(&gate, 0, 0);
    sem_init(&worked, 0, 0);
    assert_int_equal(pool_create(&p, 2, &err), RIDGE_OK);
    named_job jobs[6];
    for (int i = 0; i < 6; i++) {
        bool heavy = i < 4;
        jobs[i] = (named_job){.job = {.work = job_work, .done = job_done, .heavy = heavy},
                              .name = (char)((heavy ? 'A' : 'a') + i),
                              .gate = heavy ? &gate : NULL,
                              .worked = &worked,
                              .log = log};
        pool_submit(p, &jobs[i].job);
    }
    assert_true(wait_for(&worked) && wait_for(&worked));
    pthread_mutex_lock(&log_lock);
    assert_string_equal(log, "ef"); /* though four heavy ones came before */
    pthread_mutex_unlock(&log_lock);
    for (int i = 0; i < 4; i++) {
        sem_post(&gate);
        assert_true(wait_for(&worked));
    }
    assert_string_equal(log, "efABCD");
    pool_destroy(p);
}

static void test_one_worker_keeps_the_order(void **state) {
    (void)state;
    sem_t worked;
    char log[16] = "";
    pool *p = NULL;
    ridge_error err = {0};
    sem_init(&worked, 0, 0);
    assert_int_equal(pool_create(&p, 1, &err), RIDGE_OK);
    named_job jobs[6];
    for (int i = 0; i < 6; i++) {
        jobs[i] = (named_job){.job = {.work = job_work, .done = job_done, .heavy = i % 2 == 0},
                              .name = (char)('a' + i),
                              .worked = &worked,
                              .log = log};
        pool_submit(p, &jobs[i].job);
    }
    for (int i = 0; i < 6; i++) assert_true(wait_for(&worked));
    assert_string_equal(log, "abcdef");
    pool_destroy(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_heavy_jobs_leave_a_worker),
                                       cmocka_unit_test(test_one_worker_keeps_the_order)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
