/* What data sheets say against what the chips are made of: units, clocks, pins and links. Half or
 * double of it would be a peak with sparsity, with sums in 16 bits, or a link counted both ways. */
#include "unit.h"
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "roof/hardware.h"

/* 16-bit peak: units (SMs, compute units, cores; of the TPU four arrays of 128 x 128), dense
 * operations of each a clock with sums in 32 bits, GHz at boost. From the architecture white papers
 * (GA100, GH100, GA102, AD102, GB202, CDNA 3), the makers' product pages and, for Apple, what
 * powermetrics shows. 0: the clock isn't published (B200) or not that of the chip's limit (H20).
 * Memory: pins and Gbit/s of each. Links: of one device, and GB/s of each in one direction. */
static const struct {
    const char *name;
    double units, flops_per_clock, ghz, pins, gbit_per_pin, links, link_gb;
} made_of[] = {
    {"a100-40gb", 108, 2048, 1.41, 5120, 2.43, 12, 25},
    {"a100-80gb", 108, 2048, 1.41, 5120, 3.186, 12, 25},
    {"h100", 132, 4096, 1.83, 5120, 5.238, 18, 25},
    {"h100-pcie", 114, 4096, 1.62, 5120, 3.186, 12, 25},
    {"h200", 132, 4096, 1.83, 6144, 6.25, 18, 25},
    {"h800", 132, 4096, 1.83, 5120, 5.238, 8, 25},
    {"h20", 0, 0, 0, 6144, 5.238, 18, 25},
    {"b200", 0, 0, 0, 8192, 8, 18, 50},
    {"gb200", 0, 0, 0, 8192, 8, 18, 50},
    {"mi300x", 304, 2048, 2.1, 8192, 5.2, 7, 64},
    {"l4", 58, 1024, 2.04, 192, 12.5, 0, 0},
    {"l40s", 142, 1024, 2.52, 384, 18, 0, 0},
    {"a10", 72, 1024, 1.695, 384, 12.5, 0, 0},
    {"rtx-4090", 128, 512, 2.52, 384, 21, 0, 0},
    {"rtx-5090", 170, 512, 2.407, 512, 28, 0, 0},
    {"tpu-v5e", 4, 2 * 128 * 128, 1.5, 2048, 3.2, 4, 50},
    {"m2-ultra", 76, 256, 1.398, 1024, 6.4, 0, 0},
    {"m3-max", 40, 256, 1.38, 512, 6.4, 0, 0},
    {"m4-max", 40, 256, 1.578, 512, 8.533, 0, 0},
    {"m3-ultra", 80, 256, 1.38, 1024, 6.4, 0, 0},
    {"epyc-9654", 96, 64, 2.4, 12 * 64, 4.8, 0, 0},
    {"xeon-8480", 56, 1024, 2.0, 8 * 64, 4.8, 0, 0},
    {"ryzen-7950x", 16, 64, 4.5, 2 * 64, 5.2, 0, 0},
};

static void near(const char *name, const char *what, double said, double made) {
    if (fabs(said - made) > 0.03 * made) fail_msg("%s: %s %g, made of %g", name, what, said, made);
}

static void peaks_are_those_of_their_parts(void **state) {
    (void)state;
    size_t n = sizeof made_of / sizeof *made_of;
    for (size_t i = 0; i < n; i++) {
        hardware h = {0};
        assert_int_equal(hardware_find(&h, made_of[i].name, NULL), RIDGE_OK);
        double flops = made_of[i].units * made_of[i].flops_per_clock * made_of[i].ghz * 1e9;
        if (flops > 0) near(h.name, "16-bit peak", h.peaks[PEAK_16], flops);
        near(h.name, "bandwidth", h.bytes_per_s,
             made_of[i].pins * made_of[i].gbit_per_pin / 8 * 1e9);
        near(h.name, "link", h.link_bytes_per_s, made_of[i].links * made_of[i].link_gb * 1e9);
    }
    assert_non_null(hardware_at(n - 1));
    assert_null(hardware_at(n)); /* none is left out */
}

static void save(const efficiency_profile *p, const char *path) {
    buf text = {0};
    efficiency_write(&text, p);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text.data, 1, text.len, f), text.len);
    assert_int_equal(fclose(f), 0);
    buf_free(&text);
}

/* Half the bits, twice the operations; GeForce halves sums in 32 bits, so integers have four times.
 */
static void smaller_numbers_are_faster(void **state) {
    (void)state;
    const hardware *h;
    for (size_t i = 0; (h = hardware_at(i)) != NULL; i++) {
        double of_16 = h->peaks[PEAK_16], of_8 = h->peaks[PEAK_FP8], of_int8 = h->peaks[PEAK_INT8];
        bool geforce = strncmp(h->name, "rtx", 3) == 0;
        if (of_8 > 0) near(h->name, "FP8 peak", of_8, 2 * of_16);
        if (of_int8 > 0) near(h->name, "INT8 peak", of_int8, (geforce ? 4 : 2) * of_16);
        if (h->peaks[PEAK_FP4] > 0)
            near(h->name, "FP4 peak", h->peaks[PEAK_FP4], 2 * fmax(of_8, of_int8));
    }
}

/* A profile's file stands for the machine that it was measured on, if it says which. */
static void a_measured_machine_comes_from_its_profile(void **state) {
    (void)state;
    char path[] = "/tmp/ridge-hardware-XXXXXX";
    char file[sizeof path + 8];
    efficiency_profile of_a = efficiency_ideal(), p = {.name = "untouched"};
    hardware h = {0};
    ridge_error err = {0};
    assert_non_null(mkdtemp(path));
    snprintf(file, sizeof file, "%s/a.json", path);
    snprintf(of_a.name, sizeof of_a.name, "a");
    save(&of_a, file);
    assert_int_equal(hardware_open(&h, &p, file, &err), RIDGE_EINVAL);
    assert_non_null(strstr(err.text, "doesn't say of which machine"));
    assert_string_equal(p.name, "untouched");
    of_a.machine = (efficiency_machine){"A, 2 threads", 4e11, 2e10, 8e9, 0, 0};
    save(&of_a, file);
    assert_int_equal(hardware_open(&h, &p, file, NULL), RIDGE_OK);
    assert_string_equal(p.name, "a");
    assert_string_equal(h.title, "A, 2 threads");
    assert_true(h.bytes_per_s == 2e10 && h.memory_bytes == 8e9);
    for (int i = 0; i < PEAK_N; i++) assert_true(hardware_flops(&h, (hardware_peak)i) == 4e11);
    unlink(file);
    rmdir(path);
    assert_int_equal(hardware_open(&h, &p, "h100", NULL), RIDGE_OK);
    assert_string_equal(p.name, "a"); /* names have no profile */
    assert_int_equal(hardware_open(&h, &p, "./nowhere.json", NULL), RIDGE_ENOTFOUND);
    assert_int_equal(hardware_open(&h, &p, "h1000", NULL), RIDGE_ENOTFOUND);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peaks_are_those_of_their_parts),
        cmocka_unit_test(smaller_numbers_are_faster),
        cmocka_unit_test(a_measured_machine_comes_from_its_profile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
