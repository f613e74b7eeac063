/* plan/models: see models.h. */
#include "plan/models.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/mapfile.h"
#include "base/mem.h"
#include "model/hf_config.h"

static const struct {
    const char *name, *source, *config;
} models[] = {
#define MODEL(name, source, ...) {name, source, #__VA_ARGS__},
#include "plan/models.inc"
#undef MODEL
};
#define N_MODELS (sizeof models / sizeof *models)

const char *plan_model_name(size_t i) {
    return i < N_MODELS ? models[i].name : NULL;
}

const char *plan_model_source(size_t i) {
    return i < N_MODELS ? models[i].source : NULL;
}

/* "llama-2-7b/13b/70b, ...": names next to each other that differ after their last dash are one. */
static void list_names(char *out, size_t size) {
    size_t used = 0, prefix = 0;
    for (size_t i = 0; i < N_MODELS && used < size; i++) {
        const char *name = models[i].name;
        bool same = prefix > 0 && strncmp(name, models[i - 1].name, prefix) == 0 &&
                    strchr(name + prefix, '-') == NULL;
        used += (size_t)snprintf(out + used, size - used, "%s%s",
                                 i == 0 ? ""
                                 : same ? "/"
                                        : ", ",
                                 same ? name + prefix : name);
        prefix = (size_t)(strrchr(name, '-') - name) + 1;
    }
}

static ridge_status fail_unknown(const char *name, ridge_error *err) {
    char names[400];
    list_names(names, sizeof names);
    return RIDGE_FAIL(err, RIDGE_ENOTFOUND, "model '%.60s': no such file, and known by name are %s",
                      name, names);
}

ridge_status plan_model_find(model_config *out, const char *name, ridge_error *err) {
    for (size_t i = 0; i < N_MODELS; i++)
        if (strcmp(models[i].name, name) == 0)
            return hf_config_read(out, models[i].config, strlen(models[i].config), err);
    return fail_unknown(name, err);
}

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

/* Before what is wrong in it. */
static void name_file(ridge_error *err, const char *path) {
    buf text = {0};
    if (err == NULL) return;
    buf_printf(&text, "%s: %s", path, err->text);
    if (!text.failed) snprintf(err->text, sizeof err->text, "%s", text.data);
    buf_free(&text);
}

static ridge_status read_config(model_config *out, const char *path, ridge_error *err) {
    char *json;
    size_t size;
    RIDGE_TRY(file_read(&json, &size, path, HF_CONFIG_MAX_BYTES, err));
    ridge_status status = hf_config_read(out, json, size, err);
    if (status != RIDGE_OK) name_file(err, path);
    mem_free(json);
    return status;
}

static ridge_status read_folder(model_config *out, const char *folder, ridge_error *err) {
    buf path = {0};
    buf_printf(&path, "%s/config.json", folder);
    if (path.failed) return RIDGE_FAIL(err, RIDGE_ENOMEM, "the path of a folder");
    ridge_status status = read_config(out, path.data, err);
    buf_free(&path);
    return status;
}

ridge_status plan_model_config(model_config *out, bool *file, const char *name, ridge_error *err) {
    struct stat st;
    *file = false;
    if (stat(name, &st) != 0) return plan_model_find(out, name, err);
    if (S_ISDIR(st.st_mode)) return read_folder(out, name, err);
    if (ends_with(name, ".json")) return read_config(out, name, err);
    *file = true;
    return RIDGE_OK;
}

ridge_status plan_model_open(plan_model *out, const char *name, device *dev, ridge_error *err) {
    plan_model m = {0};
    model_config config;
    bool file;
    ridge_status status = plan_model_config(&config, &file, name, err);
    if (status == RIDGE_OK && file) status = gguf_open(&m.file, name, err);
    if (status == RIDGE_OK)
        status = file ? model_open(&m.model, m.file, dev, NULL, err)
                      : model_open_shape(&m.model, &config, dev, err);
    if (status != RIDGE_OK) {
        plan_model_close(&m);
        return status;
    }
    *out = m;
    return RIDGE_OK;
}

void plan_model_close(plan_model *m) {
    model_close(m->model);
    gguf_close(m->file);
    *m = (plan_model){0};
}
