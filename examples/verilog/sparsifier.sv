// A stream of floats without its small values, compressed by the zero-value encoder of gradring.
//
// The encoder is build/verilog/compression.zero_value.encoder.v, as `make verilog UNIT=compression.zero_value.encoder`
// or examples/verilog_design.py writes it. The output has a mask for each 32 elements, followed by the elements
// with a magnitude of at least the threshold.

module sparsifier (
  input  logic         aclk,
  input  logic         aresetn,

  // Four binary32 numbers per beat, the first in the lowest bits; tkeep has four bits for each.
  input  logic         s_axis_tvalid,
  output logic         s_axis_tready,
  input  logic [127:0] s_axis_tdata,
  input  logic [15:0]  s_axis_tkeep,
  input  logic         s_axis_tlast,

  output logic         m_axis_tvalid,
  input  logic         m_axis_tready,
  output logic [31:0]  m_axis_tdata,
  output logic         m_axis_tlast,

  // A positive number, without its sign; and what has come in and gone out since reset.
  input  logic [30:0]  threshold,
  output logic [31:0]  elements,
  output logic [31:0]  words
);
  logic [127:0] kept;
  logic [2:0]   count;

  // Without their signs, floats are in the order of their bits.
  always_comb begin
    count = 0;
    for (int lane = 0; lane < 4; lane++) begin
      kept[32*lane+:32] = s_axis_tdata[32*lane+:31] >= threshold ? s_axis_tdata[32*lane+:32] : 0;
      count += {2'b0, &s_axis_tkeep[4*lane+:4]};
    end
  end

  gradring_compression_zero_value_encoder encoder (
    .aclk, .aresetn,
    .s_axis_i_tvalid(s_axis_tvalid),
    .s_axis_i_tready(s_axis_tready),
    .s_axis_i_tdata(kept),
    .s_axis_i_tkeep(s_axis_tkeep),
    .s_axis_i_tlast(s_axis_tlast),
    .m_axis_o_tvalid(m_axis_tvalid),
    .m_axis_o_tready(m_axis_tready),
    .m_axis_o_tdata(m_axis_tdata),
    .m_axis_o_tlast(m_axis_tlast)
  );

  always_ff @(posedge aclk) begin
    if (!aresetn) begin
      elements <= 0;
      words <= 0;
    end else begin
      if (s_axis_tvalid && s_axis_tready) elements <= elements + {29'b0, count};
      if (m_axis_tvalid && m_axis_tready) words <= words + 1;
    end
  end
endmodule
