/* roof/hardware: see hardware.h. */
#include "roof/hardware.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define T 1e12
#define G 1e9

/* PCIe x16, one direction: 4.0 and 5.0 (PCI-SIG: 16 and 32 GT/s a lane, 128b/130b). */
#define PCIE4 (31.5 * G)
#define PCIE5 (63 * G)
/* InfiniBand NDR, one port of 400 Gbit/s for each GPU; HDR, 200. */
#define NDR (50 * G)
#define HDR (25 * G)

/* {f32, 16 bits, fp8, int8, fp4}, bandwidth, memory, link, bus, network. Matrix units with sums in
 * 32 bits; where a data sheet gives peaks "with sparsity", half of them. Memory of CPUs: a module
 * of 64 GB a channel (Ryzen: 32 GB). */
static const hardware table[] = {
    {"a100-40gb",
     "NVIDIA A100 40 GB SXM",
     {19.5 * T, 312 * T, 0, 624 * T, 0},
     1555 * G,
     40 * G,
     300 * G,
     PCIE4,
     HDR,
     "NVIDIA A100 Tensor Core GPU data sheet, 2020"},
    {"a100-80gb",
     "NVIDIA A100 80 GB SXM",
     {19.5 * T, 312 * T, 0, 624 * T, 0},
     2039 * G,
     80 * G,
     300 * G,
     PCIE4,
     HDR,
     "NVIDIA A100 Tensor Core GPU data sheet, 2021"},
    {"h100",
     "NVIDIA H100 SXM",
     {67 * T, 989 * T, 1979 * T, 1979 * T, 0},
     3.35 * T,
     80 * G,
     450 * G,
     PCIE5,
     NDR,
     "NVIDIA H100 Tensor Core GPU data sheet, 2023"},
    {"h100-pcie",
     "NVIDIA H100 PCIe",
     {51 * T, 756 * T, 1513 * T, 1513 * T, 0},
     2 * T,
     80 * G,
     300 * G, /* by NVLink bridge */
     PCIE5,
     NDR,
     "NVIDIA H100 Tensor Core GPU data sheet, 2022, column PCIe"},
    {"h200",
     "NVIDIA H200 SXM",
     {67 * T, 989 * T, 1979 * T, 1979 * T, 0},
     4.8 * T,
     141 * G,
     450 * G,
     PCIE5,
     NDR,
     "NVIDIA H200 Tensor Core GPU data sheet, 2024"},
    {"h800",
     "NVIDIA H800 SXM",
     {67 * T, 989 * T, 1979 * T, 1979 * T, 0},
     3.35 * T,
     80 * G,
     200 * G,
     PCIE5,
     NDR,
     "as H100 SXM with NVLink of 400 GB/s both ways: DeepSeek-V3, arXiv 2412.19437 and 2505.09343"},
    {"h20",
     "NVIDIA H20",
     {44 * T, 148 * T, 296 * T, 296 * T, 0},
     4 * T,
     96 * G,
     450 * G,
     PCIE5,
     NDR,
     "NVIDIA H20 specification, 2023 (published by resellers; NVIDIA has no public data sheet)"},
    {"b200",
     "NVIDIA B200 (HGX)",
     {75 * T, 2250 * T, 4500 * T, 4500 * T, 9000 * T},
     8 * T, /* the HGX column of the Blackwell data sheet has 7.7 */
     180 * G,
     900 * G,
     PCIE5,
     NDR,
     "NVIDIA Blackwell data sheet, HGX B200; memory: DGX B200 data sheet, 2024, divided by 8"},
    {"gb200",
     "NVIDIA GB200 NVL72, one GPU of it",
     {80 * T, 2500 * T, 5000 * T, 5000 * T, 10000 * T},
     8 * T,
     186 * G,
     900 * G,
     PCIE5,
     NDR,
     "NVIDIA GB200 NVL72 data sheet, 2024, divided by 72"},
    {"mi300x",
     "AMD Instinct MI300X",
     {163.4 * T, 1307.4 * T, 2614.9 * T, 2614.9 * T, 0},
     5.3 * T,
     192 * G,
     448 * G, /* seven Infinity Fabric links of 128 GB/s both ways */
     PCIE5,
     NDR,
     "AMD Instinct MI300X data sheet, 2023"},
    {"l4",
     "NVIDIA L4",
     {30.3 * T, 121 * T, 242.5 * T, 242.5 * T, 0},
     300 * G,
     24 * G,
     0,
     PCIE4,
     0,
     "NVIDIA L4 Tensor Core GPU data sheet, 2023"},
    {"l40s",
     "NVIDIA L40S",
     {91.6 * T, 362 * T, 733 * T, 733 * T, 0},
     864 * G,
     48 * G,
     0,
     PCIE4,
     0,
     "NVIDIA L40S GPU data sheet, 2023"},
    {"a10",
     "NVIDIA A10",
     {31.2 * T, 125 * T, 0, 250 * T, 0},
     600 * G,
     24 * G,
     0,
     PCIE4,
     0,
     "NVIDIA A10 Tensor Core GPU data sheet, 2021"},
    {"rtx-4090",
     "NVIDIA GeForce RTX 4090",
     {82.6 * T, 165.2 * T, 330.3 * T, 660.6 * T, 0},
     1008 * G,
     24 * G,
     0,
     PCIE4,
     0,
     "NVIDIA Ada GPU architecture white paper, 2022, appendix A"},
    {"rtx-5090",
     "NVIDIA GeForce RTX 5090",
     {104.8 * T, 209.5 * T, 419 * T, 838 * T, 1676 * T},
     1792 * G,
     32 * G,
     0,
     PCIE5,
     0,
     "NVIDIA RTX Blackwell GPU architecture white paper, 2025, appendix A"},
    {"tpu-v5e",
     "Google TPU v5e",
     {0, 197 * T, 0, 393 * T, 0},
     819 * G,
     16 * G,
     200 * G, /* 400 GB/s both ways */
     PCIE4,
     0,
     "Google Cloud documentation, TPU v5e"},
    {"m2-ultra",
     "Apple M2 Ultra (76 GPU cores)",
     {27.2 * T, 27.2 * T, 0, 0, 0},
     800 * G,
     192 * G,
     0,
     0,
     0,
     "Apple, Mac Studio technical specifications and press release, June 2023"},
    {"m3-max",
     "Apple M3 Max (40 GPU cores)",
     {14.1 * T, 14.1 * T, 0, 0, 0},
     400 * G,
     128 * G,
     0,
     0,
     0,
     "Apple, MacBook Pro technical specifications, 2023; peak: 40 cores of 128 units at 1.38 GHz"},
    {"m4-max",
     "Apple M4 Max (40 GPU cores)",
     {16.2 * T, 16.2 * T, 0, 0, 0},
     546 * G,
     128 * G,
     0,
     0,
     0,
     "Apple, MacBook Pro technical specifications, 2024; peak: 40 cores of 128 units at 1.578 GHz"},
    {"m3-ultra",
     "Apple M3 Ultra (80 GPU cores)",
     {28.3 * T, 28.3 * T, 0, 0, 0},
     819 * G,
     512 * G,
     0,
     0,
     0,
     "Apple, Mac Studio technical specifications, 2025; peak: 80 cores of 128 units at 1.38 GHz"},
    {"epyc-9654",
     "AMD EPYC 9654 (96 cores, 12 channels of DDR5-4800)",
     {7.4 * T, 14.7 * T, 0, 29.5 * T, 0},
     460.8 * G,
     768 * G,
     0,
     PCIE5,
     0,
     "AMD EPYC 9004 data sheet, 2022; peak: 96 cores at 2.4 GHz with 32 f32 FLOPs a cycle"},
    {"xeon-8480",
     "Intel Xeon Platinum 8480+ (56 cores, 8 channels of DDR5-4800)",
     {7.2 * T, 114.7 * T, 0, 229.4 * T, 0},
     307.2 * G,
     512 * G,
     0,
     PCIE5,
     0,
     "Intel ARK, 2023; peak: 56 cores at 2.0 GHz, with AMX 1,024 bf16 FLOPs a cycle"},
    {"ryzen-7950x",
     "AMD Ryzen 9 7950X (16 cores, 2 channels of DDR5-5200)",
     {2.3 * T, 4.6 * T, 0, 9.2 * T, 0},
     83.2 * G,
     64 * G,
     0,
     PCIE5,
     0,
     "AMD product page, 2022; peak: 16 cores at 4.5 GHz with 32 f32 FLOPs a cycle"},
};
#define N_TABLE (sizeof table / sizeof *table)

static const struct {
    const char *name, *of;
} aliases[] = {{"a100", "a100-80gb"},   {"a100-sxm", "a100-80gb"}, {"h100-sxm", "h100"},
               {"h100-80gb", "h100"},   {"h200-sxm", "h200"},      {"rtx4090", "rtx-4090"},
               {"rtx5090", "rtx-5090"}, {"4090", "rtx-4090"},      {"5090", "rtx-5090"},
               {"v5e", "tpu-v5e"}};

const hardware *hardware_at(size_t i) {
    return i < N_TABLE ? &table[i] : NULL;
}

ridge_status hardware_find(hardware *out, const char *name, ridge_error *err) {
    const char *wanted = name;
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (strcmp(aliases[i].name, name) == 0) wanted = aliases[i].of;
    for (size_t i = 0; i < N_TABLE; i++)
        if (strcmp(table[i].name, wanted) == 0) {
            *out = table[i];
            return RIDGE_OK;
        }
    char names[400] = "";
    size_t used = 0;
    for (size_t i = 0; i < N_TABLE && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i > 0 ? ", " : "",
                                 table[i].name);
    return RIDGE_FAIL(err, RIDGE_ENOTFOUND, "GPU '%.60s' is not known; known are %s", name, names);
}

static bool is_path(const char *name) {
    return strchr(name, '/') != NULL || strchr(name, '.') != NULL;
}

ridge_status hardware_open(hardware *out, efficiency_profile *profile, const char *name,
                           ridge_error *err) {
    efficiency_profile p;
    if (!is_path(name)) return hardware_find(out, name, err);
    RIDGE_TRY(efficiency_find(&p, name, err));
    const efficiency_machine *m = &p.machine;
    if (m->flops_per_s == 0)
        return RIDGE_FAIL(err, RIDGE_EINVAL,
                          "%.80s: a profile that doesn't say of which machine, expected one of "
                          "ridge plan --calibrate",
                          name);
    hardware h = {.bytes_per_s = m->bytes_per_s,
                  .memory_bytes = m->memory_bytes,
                  .link_bytes_per_s = m->link_bytes_per_s,
                  .network_bytes_per_s = m->network_bytes_per_s,
                  .source = "measured by ridge plan --calibrate"};
    snprintf(h.name, sizeof h.name, "%s", p.name);
    snprintf(h.title, sizeof h.title, "%s", m->title);
    for (int i = 0; i < PEAK_N; i++) h.peaks[i] = m->flops_per_s;
    *out = h;
    *profile = p;
    return RIDGE_OK;
}

double hardware_flops(const hardware *h, hardware_peak precision) {
    return h->peaks[precision] > 0 ? h->peaks[precision] : h->peaks[PEAK_16];
}

double hardware_link(const hardware *h) {
    return h->link_bytes_per_s > 0 ? h->link_bytes_per_s : h->bus_bytes_per_s;
}
