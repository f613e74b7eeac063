/* device/cpu/peaks: what is measured in turn with a device's work is what is measured once; any
 * length of data; the threads of the steps in between. No rate is asserted but by another one. */
#include "unit.h"
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "device/cpu/peaks.h"

static device *open_device(int n_threads, int n_threads_batch) {
    device *d = NULL;
    ridge_error err = {0};
    const device_cpu_params p = {.n_threads = n_threads, .n_threads_batch = n_threads_batch};
    assert_int_equal(device_cpu_create(&d, &p, &err), RIDGE_OK);
    return d;
}

static bool alike(double in_turn, double once) {
    return in_turn > once / 20 && in_turn < once * 20;
}

/* In the same units: GB, not blocks; operations, not rounds. */
static void rates_are_those_measured_once(void **state) {
    (void)state;
    const size_t size = (size_t)8 << 20;
    void *data = mem_map(size);
    assert_non_null(data);
    memset(data, 1, size);
    for (int n = 1; n <= 2; n++) {
        device *d = open_device(n, n);
        roof_peaks once;
        ridge_error err = {0};
        peaks_meter m;
        assert_int_equal(device_cpu_measure(&once, device_cpu_isa(d), n, size, &err), RIDGE_OK);
        peaks_meter_open(&m, d, data, size);
        bool all = false;
        for (int i = 0; i < 5 && !all; i++) { /* one that is held up is no other unit */
            peaks_meter_run(&m, 0.05);
            roof_peaks in_turn = peaks_meter_take(&m);
            all = alike(in_turn.read_bytes_per_s, once.read_bytes_per_s) &&
                  alike(in_turn.int8_ops_per_s, once.int8_ops_per_s) &&
                  alike(in_turn.f32_flops_per_s, once.f32_flops_per_s);
        }
        assert_true(all);
        d->vtable->destroy(d);
    }
    mem_unmap(data, size);
}

/* Data that a sanitizer knows the end of. */
static void any_length_is_read_and_no_more(void **state) {
    (void)state;
    static const size_t sizes[] = {
        512, 600, 4096, 65536 + 8, (256 << 10) - 1, (256 << 10) + 512, (1 << 20) + 100000};
    device *d = open_device(2, 1);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        unsigned char *data = mem_alloc(sizes[i]);
        peaks_meter m;
        assert_non_null(data);
        peaks_meter_open(&m, d, data, sizes[i]);
        peaks_meter_fill(&m, data);
        for (uint32_t n_tokens = 1; n_tokens <= 64; n_tokens *= 64) {
            m.n_tokens = n_tokens;
            double start = clock_now_s();
            peaks_meter_run(&m, 0.004);
            assert_true(clock_now_s() - start >= 0.004);
            assert_true(m.at < m.part && m.n_parts * m.part <= sizes[i]);
            roof_peaks p = peaks_meter_take(&m);
            assert_true(p.read_bytes_per_s > 0 && p.int8_ops_per_s > 0 && p.f32_flops_per_s > 0);
        }
        mem_free(data);
    }
    d->vtable->destroy(d);
}

/* A take begins anew; one without a run before it measures what it needs. */
static void what_was_taken_counts_no_more(void **state) {
    (void)state;
    device *d = open_device(1, 1);
    unsigned char data[4096] = {0};
    peaks_meter m;
    peaks_meter_open(&m, d, data, sizeof data);
    for (int i = 0; i < 2; i++) {
        roof_peaks p = peaks_meter_take(&m);
        assert_true(p.read_bytes_per_s > 0 && p.int8_ops_per_s > 0 && p.f32_flops_per_s > 0);
        for (int loop = 0; loop < PEAKS_N_LOOPS; loop++)
            assert_true(m.work[loop] == 0 && m.seconds[loop] == 0);
    }
    d->vtable->destroy(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_are_those_measured_once),
        cmocka_unit_test(any_length_is_read_and_no_more),
        cmocka_unit_test(what_was_taken_counts_no_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
