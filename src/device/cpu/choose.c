/* device/cpu/choose: which path this machine gets. What it has is asked for once, here; what
 * follows from that is a function of the answer alone.
 *
 * avx512 needs VNNI: without vpdpbusd the integer product is made of the three instructions that
 * avx2 makes it of, and the machines so equipped (Skylake-X) slow down for 512-bit ones; they get
 * avx2. Of AVX-VNNI, vpdpbusd on 256 bits where there is no AVX-512, no path makes use yet.
 */
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include "device/cpu/cpu_internal.h"

#if defined(__x86_64__)
static bool has_f16c(void) { /* not every compiler's __builtin_cpu_supports knows it */
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}
#endif

cpu_features cpu_features_here(void) {
    cpu_features f = {0};
#if defined(__x86_64__)
    __builtin_cpu_init();
    f.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c() &&
             __builtin_cpu_supports("bmi2");
    f.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    f.avx512_vnni = __builtin_cpu_supports("avx512vnni");
    f.zen = __builtin_cpu_is("amd");
#elif defined(__aarch64__)
    f.dotprod = (getauxval(AT_HWCAP) & (1UL << 20)) != 0; /* HWCAP_ASIMDDP */
    f.i8mm = (getauxval(AT_HWCAP2) & (1UL << 13)) != 0;   /* HWCAP2_I8MM */
#endif
    return f;
}

int cpu_paths(cpu_features f, const cpu_kernels *out[CPU_MAX_PATHS]) {
    int n = 0;
#if defined(__x86_64__)
    if (f.avx2 && f.avx512 && f.avx512_vnni)
        out[n++] = f.zen ? &cpu_kernels_zen : &cpu_kernels_avx512;
    if (f.avx2) out[n++] = &cpu_kernels_avx2;
#elif defined(__aarch64__)
    if (f.dotprod && f.i8mm) out[n++] = &cpu_kernels_i8mm;
    if (f.dotprod) out[n++] = &cpu_kernels_neon;
#else
    (void)f;
#endif
    out[n++] = &cpu_kernels_portable;
    return n;
}

ridge_status cpu_kernels_choose(const cpu_kernels **out, const char *isa, ridge_error *err) {
    const cpu_kernels *paths[CPU_MAX_PATHS];
    int n = cpu_paths(cpu_features_here(), paths);
    for (int i = 0; i < n; i++)
        if (isa == NULL || strcmp(isa, paths[i]->isa) == 0) {
            *out = paths[i];
            return RIDGE_OK;
        }
    char here[64] = "";
    for (int i = 0; i < n; i++) {
        if (i > 0) strcat(here, ", ");
        strcat(here, paths[i]->isa);
    }
    return RIDGE_FAIL(err, RIDGE_EUNSUPPORTED, "instruction set '%s': this machine has %s", isa,
                      here);
}
