/* device/cpu/peaks: see peaks.h. */
#include "device/cpu/peaks.h"

#include <stdatomic.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/team.h"
#include "device/cpu/cpu_internal.h"

#define ARITHMETIC_SECONDS 0.05
#define READ_PASSES 5

static uint64_t read_portable(const void *data, size_t size) {
    const uint64_t *p = data;
    uint64_t acc[16] = {0};
    for (size_t i = 0; i + 16 <= size / 8; i += 16)
        for (int j = 0; j < 16; j++) acc[j] ^= p[i + j];
    for (int j = 1; j < 16; j++) acc[0] ^= acc[j];
    return acc[0];
}

/* The vectors start from volatile values: the compiler cannot know what the loop computes. */
static int32_t int8_portable(long rounds) {
    volatile int8_t seed = 3;
    int32_t acc[16] = {0};
    int8_t a[16], b[16];
    for (int i = 0; i < 16; i++) a[i] = seed, b[i] = (int8_t)(seed + i);
    for (long r = 0; r < rounds; r++) {
        for (int i = 0; i < 16; i++) acc[i] += a[i] * b[i];
        a[r & 15] ^= 1;
    }
    for (int i = 1; i < 16; i++) acc[0] ^= acc[i];
    return acc[0];
}

static float f32_portable(long rounds) {
    volatile float seed = 0.5f;
    float acc[32], x = seed;
    for (int i = 0; i < 32; i++) acc[i] = seed + (float)i;
    for (long r = 0; r < rounds; r++)
        for (int i = 0; i < 32; i++) acc[i] = acc[i] * x + x;
    for (int i = 1; i < 32; i++) acc[0] += acc[i];
    return acc[0];
}

const peaks_loops peaks_portable = {read_portable, int8_portable, f32_portable, 32, 64};

static const peaks_loops *find_loops(const char *isa) {
#if defined(__x86_64__)
    if (strcmp(isa, "avx512") == 0) return &peaks_avx512;
    if (strcmp(isa, "avx2") == 0) return &peaks_avx2;
#elif defined(__aarch64__)
    if (strcmp(isa, "i8mm") == 0) return &peaks_i8mm;
    if (strcmp(isa, "neon") == 0) return &peaks_neon;
#endif
    return strcmp(isa, "portable") == 0 ? &peaks_portable : NULL;
}

/* In turn ----------------------------------------------------------------------------------- */

#define MAX_PIECE ((size_t)256 << 10)
#define MAX_PIECES (UINT32_C(1) << 20)
#define PIECES_EACH 8 /* for every thread */
#define SLICE_SECONDS 1e-3

/* One slice, in pieces of which each member has its share. */
typedef struct {
    const peaks_meter *m;
    const peaks_loops *loops;
    team *team;
    int loop;
    uint32_t n_pieces;
    atomic_ullong sink;
} slice_job;

/* Members take pieces in equal runs: the first of them to the first part of the data. */
static const unsigned char *piece_at(const peaks_meter *m, uint32_t i, uint32_t n_pieces) {
    uint32_t per_part = n_pieces / m->n_parts;
    size_t at = (m->at + i % per_part * m->piece) % m->part;
    return m->data + i / per_part * m->part + at;
}

static unsigned long long run_piece(const slice_job *j, uint32_t i) {
    const peaks_meter *m = j->m;
    long rounds = (long)(m->slice[j->loop] / j->n_pieces);
    switch (j->loop) {
    case PEAKS_READ: return j->loops->read(piece_at(m, i, j->n_pieces), m->piece);
    case PEAKS_INT8: return (unsigned long long)j->loops->int8(rounds);
    default: return (unsigned long long)(long long)j->loops->f32(rounds);
    }
}

static void slice_member(void *context, int member, int n_members) {
    slice_job *j = context;
    unsigned long long value = 0;
    (void)n_members;
    team_cursor work = team_work(j->team, member, j->n_pieces);
    for (uint32_t i; team_next(&work, &i);) value ^= run_piece(j, i);
    atomic_fetch_xor(&j->sink, value);
}

static double slice_work(const peaks_meter *m, const peaks_loops *loops, int loop) {
    double n = (double)m->slice[loop];
    return loop == PEAKS_READ   ? n
           : loop == PEAKS_INT8 ? n * loops->int8_ops_per_round
                                : n * loops->f32_flops_per_round;
}

/* Its time. One that is too short to be told from its hand-overs makes the next ones longer, and is
 * not counted; nor is the first that is long enough, as it may have been held up. */
static double run_slice(peaks_meter *m, int loop) {
    const cpu_device *cpu = (const cpu_device *)m->device;
    bool reads = loop == PEAKS_READ;
    slice_job job = {.m = m,
                     .loops = find_loops(cpu->kernels->isa),
                     .team = cpu->team,
                     .loop = loop,
                     .n_pieces = reads ? (uint32_t)(m->slice[loop] / m->piece)
                                       : PIECES_EACH * (uint32_t)team_size(cpu->team)};
    double start = clock_now_s();
    team_run_first(cpu->team, cpu_n_members(cpu, m->n_tokens), slice_member, &job);
    double seconds = clock_now_s() - start;
    if (reads) m->at = (m->at + m->slice[loop] / m->n_parts) % m->part;
    bool enough = seconds >= SLICE_SECONDS || job.n_pieces >= MAX_PIECES;
    bool counts = enough && m->sized[loop];
    m->sized[loop] = enough;
    if (!enough) m->slice[loop] *= 2;
    if (!counts) return seconds;
    m->work[loop] += slice_work(m, job.loops, loop);
    m->seconds[loop] += seconds;
    return seconds;
}

void peaks_meter_open(peaks_meter *m, device *d, const void *data, size_t size) {
    *m = (peaks_meter){.device = d, .data = data};
    size_t most = size / 512, n = (size_t)team_size(((const cpu_device *)d)->team);
    m->n_parts = (uint32_t)(n < most ? n : most);
    size_t part = size / m->n_parts;
    m->piece = part < MAX_PIECE ? part / 512 * 512 : MAX_PIECE;
    m->part = part / m->piece * m->piece;
    m->slice[PEAKS_READ] = PIECES_EACH * m->n_parts * m->piece;
    m->slice[PEAKS_INT8] = m->slice[PEAKS_F32] = 64 * PIECES_EACH * n;
}

typedef struct {
    const peaks_meter *m;
    unsigned char *data;
} fill_job;

static void fill_member(void *context, int member, int n_members) {
    const fill_job *j = context;
    (void)n_members;
    if ((uint32_t)member < j->m->n_parts)
        memset(j->data + (size_t)member * j->m->part, member + 1, j->m->part);
}

void peaks_meter_fill(const peaks_meter *m, void *data) {
    team_run(((const cpu_device *)m->device)->team, fill_member, &(fill_job){m, data});
}

void peaks_meter_run(peaks_meter *m, double seconds) {
    double spent = 0;
    do {
        int next = 0;
        for (int i = 1; i < PEAKS_N_LOOPS; i++)
            if (m->seconds[i] < m->seconds[next]) next = i;
        spent += run_slice(m, next);
    } while (spent < seconds);
}

roof_peaks peaks_meter_take(peaks_meter *m) {
    double rates[PEAKS_N_LOOPS];
    for (int i = 0; i < PEAKS_N_LOOPS; i++) {
        while (m->seconds[i] == 0) run_slice(m, i);
        rates[i] = m->work[i] / m->seconds[i];
        m->work[i] = m->seconds[i] = 0;
    }
    return (roof_peaks){rates[PEAKS_READ], rates[PEAKS_INT8], rates[PEAKS_F32]};
}

/* Once -------------------------------------------------------------------------------------- */

typedef struct {
    const peaks_loops *loops;
    const unsigned char *data;
    size_t size;
    long rounds;
    enum { RUN_TOUCH, RUN_READ, RUN_INT8, RUN_F32 } what;
    atomic_ullong sink;
} measure;

static void measure_member(void *context, int member, int n) {
    measure *m = context;
    size_t share = m->size / (size_t)n / 4096 * 4096;
    unsigned char *own = (unsigned char *)m->data + share * (size_t)member;
    unsigned long long value = 0;
    switch (m->what) {
    case RUN_TOUCH: memset(own, member + 1, share); break;
    case RUN_READ: value = m->loops->read(own, share); break;
    case RUN_INT8: value = (unsigned long long)m->loops->int8(m->rounds); break;
    case RUN_F32: value = (unsigned long long)(long long)m->loops->f32(m->rounds); break;
    }
    atomic_fetch_xor(&m->sink, value);
}

static double timed(team *t, measure *m) {
    double start = clock_now_s();
    team_run(t, measure_member, m);
    return clock_now_s() - start;
}

/* Rounds per second of all members together, over at least ARITHMETIC_SECONDS; the best of three.
 */
static double rounds_per_s(team *t, measure *m) {
    double seconds, best = 0;
    for (m->rounds = 100000; (seconds = timed(t, m)) < ARITHMETIC_SECONDS; m->rounds *= 2) {
    }
    for (int i = 0; i < 3; i++) {
        double rate = (double)m->rounds * team_size(t) / (seconds = timed(t, m));
        if (rate > best) best = rate;
    }
    return best;
}

ridge_status device_cpu_measure(roof_peaks *out, const char *isa, int n_threads, size_t working_set,
                                ridge_error *err) {
    measure m = {.loops = find_loops(isa)};
    team *t = NULL;
    if (m.loops == NULL) return RIDGE_FAIL(err, RIDGE_EINVAL, "no measurement for ISA '%s'", isa);
    RIDGE_TRY(team_create(&t, n_threads, err));
    m.size = working_set < ((size_t)1 << 20) ? (size_t)1 << 20 : working_set;
    unsigned char *data = mem_map(m.size);
    if (data == NULL) {
        team_destroy(t);
        return RIDGE_FAIL(err, RIDGE_ENOMEM, "%zu bytes to measure the bandwidth on", m.size);
    }
    m.data = data;
    m.what = RUN_TOUCH;
    timed(t, &m);
    m.what = RUN_READ;
    double bytes = (double)(m.size / (size_t)n_threads / 4096 * 4096) * n_threads;
    roof_peaks peaks = {0};
    for (int i = 0; i < READ_PASSES; i++) {
        double rate = bytes / timed(t, &m);
        if (rate > peaks.read_bytes_per_s) peaks.read_bytes_per_s = rate;
    }
    m.what = RUN_INT8;
    peaks.int8_ops_per_s = rounds_per_s(t, &m) * m.loops->int8_ops_per_round;
    m.what = RUN_F32;
    peaks.f32_flops_per_s = rounds_per_s(t, &m) * m.loops->f32_flops_per_round;
    mem_unmap(data, m.size);
    team_destroy(t);
    *out = peaks;
    return RIDGE_OK;
}
