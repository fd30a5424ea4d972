// The operator `heddle::few_rows` for steps that torch compiled: it is called with handles of tensors, through torch's C interface.
// A step is compiled for any number of rows, so products of many rows come here, too; torch computes them.
//
// The functions it calls are given as addresses: this library is visible to every other one in the process, and a library that it
// were linked with would be, too. Of torch's symbols, some bear the names of other packages' own.

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>

#include <cstdint>

namespace {

struct Functions {
    void (*product)(int kind, int narrow, int narrow_bias, const void* x, const void* w, const void* scales, const void* bias,
                    void* y, int64_t n, int64_t F, int64_t D, int threads);
    decltype(&aoti_torch_get_sizes) sizes;
    decltype(&aoti_torch_get_dtype) dtype;
    decltype(&aoti_torch_get_data_ptr) address;
    decltype(&aoti_torch_empty_strided) empty;
    decltype(&aoti_torch_dtype_bfloat16) bfloat16;
    decltype(&aoti_torch_dtype_int8) int8;
    decltype(&aoti_torch_dtype_uint8) uint8;
    decltype(&aoti_torch_device_type_cpu) cpu;
    decltype(&aoti_torch__reinterpret_tensor) view;
    decltype(&aoti_torch_delete_tensor_object) drop;
    decltype(&aoti_torch_cpu_mm_out) mm;
    decltype(&aoti_torch_cpu_addmm_out) addmm;
} of;

int64_t most[2];  // rows of a product that is computed here, by its kind: fp32, bf16

// out = x weightᵀ + bias by torch.
AOTITorchError by_torch(AtenTensorHandle x, AtenTensorHandle weight, const AtenTensorHandle* bias, AtenTensorHandle out,
                        int64_t F, int64_t D) {
    int64_t sizes[] = {D, F}, strides[] = {1, D};
    AtenTensorHandle transposed = nullptr;
    if (of.view(weight, 2, sizes, strides, 0, &transposed)) return AOTI_TORCH_FAILURE;
    AOTITorchError error = bias ? of.addmm(out, *bias, x, transposed, 1.0, 1.0) : of.mm(out, x, transposed);
    return of.drop(transposed) ? AOTI_TORCH_FAILURE : error;
}

}  // namespace

extern "C" {

// The functions, in the order of `Functions`, and the most rows of a product in fp32 and in bf16.
void heddle_use(const Functions* functions, int64_t of_fp32, int64_t of_bf16) {
    of = *functions;
    most[0] = of_fp32;
    most[1] = of_bf16;
}

AOTITorchError aoti_torch_cpu_few_rows(AtenTensorHandle x, AtenTensorHandle weight, const AtenTensorHandle* scales,
                                       const AtenTensorHandle* bias, AtenTensorHandle* out) {
    int64_t *of_x = nullptr, *of_weight = nullptr;
    int32_t dtype = 0, of_bias = 0, of_numbers = 0;
    void *from = nullptr, *by = nullptr, *scaled = nullptr, *added = nullptr, *to = nullptr;
    if (of.sizes(x, &of_x) || of.sizes(weight, &of_weight)) return AOTI_TORCH_FAILURE;
    if (of.dtype(x, &dtype) || of.dtype(weight, &of_numbers)) return AOTI_TORCH_FAILURE;
    if (of.address(x, &from) || of.address(weight, &by)) return AOTI_TORCH_FAILURE;
    if (scales && of.address(*scales, &scaled)) return AOTI_TORCH_FAILURE;
    if (bias && (of.address(*bias, &added) || of.dtype(*bias, &of_bias))) return AOTI_TORCH_FAILURE;
    int64_t sizes[] = {of_x[0], of_weight[0]}, strides[] = {of_weight[0], 1};
    if (of.empty(2, sizes, strides, dtype, of.cpu(), 0, out)) return AOTI_TORCH_FAILURE;
    if (of.address(*out, &to)) return AOTI_TORCH_FAILURE;
    int32_t narrow = of.bfloat16();
    int kind = of_numbers == of.int8() ? 2 : of_numbers == of.uint8() ? 3 : of_numbers == narrow;
    if (kind < 2 && of_x[0] > most[kind] && dtype == of_numbers && (!bias || of_bias == dtype))
        return by_torch(x, weight, bias, *out, of_weight[0], of_x[1]);
    of.product(kind, dtype == narrow, bias && of_bias == narrow, from, by, scaled, added, to, of_x[0], of_weight[0], of_x[1], 0);
    return AOTI_TORCH_SUCCESS;
}
}
