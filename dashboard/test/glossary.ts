// The terms of the translations, as the Kubernetes documentation in Chinese and Japanese has them. A text with the
// English term has one of the translations: add a term here before using it, and look here before choosing a word.

export interface Term {
  english: RegExp;
  zh: RegExp;
  ja: RegExp;
}

export const GLOSSARY: readonly Term[] = [
  // Kubernetes; names of resources are the same in Japanese
  { english: /\bnodes?\b/i, zh: /节点/, ja: /ノード/ },
  { english: /\bpods?\b/i, zh: /Pod/, ja: /Pod/ },
  { english: /\bnamespaces?\b/i, zh: /命名空间/, ja: /Namespace/ },
  { english: /\bworkloads?\b/i, zh: /工作负载/, ja: /ワークロード/ },
  { english: /\bclusters?\b/i, zh: /集群/, ja: /クラスター/ },
  { english: /\blabels?\b/i, zh: /标签/, ja: /ラベル/ },
  { english: /\bannotations?\b/i, zh: /注解/, ja: /アノテーション/ },
  { english: /\btaints?\b/i, zh: /污点/, ja: /Taint/ },
  { english: /\bcordon/i, zh: /不可调度/, ja: /スケジュール不可/ },
  { english: /\bdrain/i, zh: /腾空/, ja: /ドレイン/ },
  { english: /\bevents?\b/i, zh: /事件/, ja: /イベント/ },
  { english: /\bcontainer\b/i, zh: /容器/, ja: /コンテナ/ },
  // gpufleet
  { english: /\bclaims?\b/i, zh: /Claim/, ja: /Claim/ },
  { english: /\bgangs?\b/i, zh: /Gang/, ja: /Gang/ },
  { english: /\bleases?\b/i, zh: /租约/, ja: /リース/ },
  { english: /\bqueue\b/i, zh: /队列/, ja: /キュー/ },
  { english: /\bbudgets?\b/i, zh: /预算/, ja: /予算/ },
  { english: /\bislands?\b/i, zh: /互联岛/, ja: /アイランド/ },
  { english: /\bagents?\b/i, zh: /Agent/, ja: /エージェント/ },
  { english: /\bteams?\b/i, zh: /团队/, ja: /チーム/ },
  { english: /\bunits?\b/i, zh: /单元/, ja: /ユニット/ },
  { english: /\bsources?\b/i, zh: /数据源/, ja: /ソース/ },
  { english: /\bmodels?\b/i, zh: /型号/, ja: /モデル/ },
  // States and measures
  { english: /(?<!Idle share of )\ballocat(ed|ions?)\b/i, zh: /分配/, ja: /割り当て/ },
  { english: /\butiliz(ed|ation)\b/i, zh: /利用率/, ja: /利用率/ },
  { english: /\bfree\b/i, zh: /空闲/, ja: /空(き|いて)/ },
  { english: /\bidle\b/i, zh: /闲置/, ja: /アイドル/ },
  { english: /\bheld\b(?! by)/i, zh: /占用/, ja: /占有/ },
  { english: /\bhealthy\b/i, zh: /健康/, ja: /正常/ },
  { english: /\bfault(s|y)?\b/i, zh: /故障/, ja: /障害/ },
  { english: /\bfindings?\b/i, zh: /问题/, ja: /検出事項/ },
  { english: /\brepairs?\b/i, zh: /修复/, ja: /修復/ },
  { english: /\bGPU hours?\b/i, zh: /GPU 小时/, ja: /GPU時間/ },
  { english: /\breadings?\b/i, zh: /读数/, ja: /測定値/ },
  { english: /\bforecasts?\b/i, zh: /预测/, ja: /予測/ },
  { english: /\bcost\b/i, zh: /成本/, ja: /コスト/ },
  { english: /\benergy\b/i, zh: /能耗/, ja: /電力量/ },
  { english: /\bruns\b/i, zh: /运行/, ja: /実行|稼働/ },
];
